"""Charts of a league's history, drawn with Matplotlib without a display.

- ``series``  data of the charts: win shares and throughput over the history
- ``charts``  one function per chart, with title and caption
- ``render``  axes, labels, shared figures, and PNG, SVG and HTML files
- ``braille`` curves of braille dots, for terminals
"""
