"""``league dash``: a league in the terminal, live or at an earlier event.

- ``views``     the interface of a view, and texts that fit a terminal; ``sections``: texts and tables as widgets
- ``overview``  league, events, workers; ``training``: metrics of gradient steps, benchmarks
- ``boards``    leaderboard, ratings, payoffs, opponents
- ``status``    what ``league status`` prints, and the texts of workers
- ``app``       keys, time and refresh

Views call the same functions as the web pages (``league.queries.pages``). To add one, write a class with the members of
``views.View`` and name it in ``app.DashboardApp``.
"""
