"""The documentation as a site: ``make docs`` builds it from ``docs/``, and from the code what the code knows best.

- ``hook``      what mkdocs calls (``mkdocs.yml``): adds the generated pages, and links pages that are named
- ``events``    the reference of events, from ``schemas.events``
- ``settings``  the reference of the configuration, from ``schemas.config`` and every plugin's settings
- ``commands``  the reference of the command line, from its parser
- ``glossary``  fields of events that need no docstring
- ``structs``   fields of structs with their docstrings
- ``markdown``  texts and tables

Generated pages exist in the built site only; nothing here writes into ``docs/``.
"""
