"""``league web``: a league in the browser, live or at an earlier event.

- ``server``    routes, cached answers, the live stream, static files, and access control: addresses, tokens, origins
- ``actions``   POST requests: SQL, and matches against agents
- ``frozen``    answers written to files; a match as one file
- ``site``      a league as static files
- ``bundle``    the pages' modules as one script
- ``static/``   the pages: plain JavaScript modules, no build step; elements are made by ``dom.js`` only

The process reads the log into a projection of its own. ``league.queries.pages`` answers the pages, ``ui.play`` plays
matches; only their results are appended to the log.
"""
