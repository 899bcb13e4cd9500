"""Charts of a league: the history folded into rows of metrics, and the sinks that rows are written to.

- ``charts``  the fold from events to rows; pure, so that a later start gives the same rows
- ``gauges``  metrics of single matches with rolling means, and of the folded state: ratings, totals, opponents
- ``sinks``   the sinks, a file each; ``workers.tracker`` feeds them
"""
