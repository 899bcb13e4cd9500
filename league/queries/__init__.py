"""Queries over a league: the terminal, the web pages and the command line are thin layers on top of this package.

- ``tables``       SQL over a run's DuckDB tables, in a child process with limits or in this one; sequences and times
- ``live_league``  tables and state that follow a running league, with one-line summaries of its events
- ``stored``       the tables and blobs of a live league for folds in other threads, and copies of its tables
- ``matches``      a match and its record, as turns, maps and conversations; ``match_text`` prints it, ``match_list``
                   lists and details matches, ``match_export`` gives them the forms of other systems
- ``decisions``    the prompt and reply of one decision of a match
- ``conversation`` decisions as they were kept: the conversation of a match, what a step was trained on
- ``leaderboard``  the leaderboard as a table, with footnotes on what its numbers mean
- ``learning``     benchmarks before and after training, and a verdict in words
- ``text_table``   rows as tables that fit a terminal, as CSV and JSON
- ``terminal``     the last step before a terminal: consoles and streams that show every character
- ``status``       the state of a league and its workers now, with alarms
- ``reports``      the success criteria of a run, and ratings under other rules
- ``plots``        charts of a league's history
- ``notebook``     results as Arrow tables, and as HTML for notebooks
- ``playable``     the matches that people can play in a league
- ``pages``        the queries behind the browser's and the terminal's pages, one module a subject

To add a query for a page, write a function with ``@route`` in a module of ``pages``. A query for several interfaces is
a function in a module here that takes a connection, a ``LiveLeague`` or a ``JetStreamLog``.
"""
