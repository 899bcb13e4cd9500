"""``league web``: a league in the browser, live and as it was.

- ``live``     the tables and the fold of a league, kept up to date, and who is told of it
- ``asked``    what a request asks, checked
- ``guard``    who may ask: addresses, tokens, pages of others
- ``server``   routes, cached answers, the live stream, the files of the pages
- ``answers/`` what is asked: one file a subject, found by themselves; JSON
- ``posts/``   what is done: SQL by visitors, and their games
- ``play/``    people in the seats of games, here and in the terminal
- ``static/``  the pages: plain modules of JavaScript, no build step; ``dom.js`` is the only way to make elements

A page is one more subscriber: the process holds a projection of its own, and nobody knows of it. It writes nothing
but the games that people play.
"""
