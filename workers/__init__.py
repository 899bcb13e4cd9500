"""The processes of a league. They share nothing but the broker.

Roles, a module each, with a coroutine ``serve(context)``:

- ``rollout``           plays training matches and publishes trajectories
- ``trainer``           turns trajectories into gradient steps and published policies (``experience_reader``,
                        ``learner_state``)
- ``evaluator``         plans evaluations and plays their matches
- ``rater``             turns results into ratings, promotions and retirements; records silent workers as left
                        (``membership``)
- ``archivist``         archives and snapshots the history
- ``tracker``           writes charts of the history (``trackers/``) to sinks and exports its events (``log_export``)
- ``inference_server``  samples for other processes, and serves the ``opponent_pool`` (``opponent_replies``)

Shared by them:

- ``run_worker``        the life of a worker process: connect, fold, join (``membership``), serve, leave
- ``runtime``           what a running one has: connections, stores, the folded history, background work
- ``match_runner/``     runs one match: seats the players, plays, appends the result
- ``decisions``         what models were asked and said, as Parquet segments
- ``policy_weights``    base model and adapters of a process that plays; ``discover_servers`` finds inference servers
- ``monitoring/``       heartbeats, metrics for Prometheus, alarms, the live table
- ``compatibility``     checks that processes of different versions may share a league
- ``supervisor``        starts, watches and restarts the workers of one machine (``process``, with
                        their names and credentials)
- ``device_turns``, ``logs``, ``progress``

To add a role, write its module and name it in ``process.ROLES`` and in ``ui.cli.machines``.
"""
