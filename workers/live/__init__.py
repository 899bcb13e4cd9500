"""A league as it is and as it was, for whoever shows it: what ``workers.web`` and ``workers.dash`` share.

- ``league``   the tables and the fold of a league, kept up to date, and who is told of it
- ``briefs``   an event in one line
- ``asked``    what a question asks, checked
- ``answers/`` what can be asked: one file a subject, found by themselves
- ``matches/`` what the answers about matches rest on
- ``slow``     answers that take seconds, one after the other
- ``stored``   the stored events, for folds that run beside all this
- ``copies``   the tables as a file, for queries by people

Nothing here knows how it is shown.
"""
