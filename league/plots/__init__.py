"""Charts of a league's history.

- ``series``   data of the charts, by SQL
- ``charts``   one function per chart, drawn with Matplotlib without a display, with title and caption
- ``render``   labels, and PNG and SVG files
- ``terminal`` curves in a terminal, drawn with plotext
"""
