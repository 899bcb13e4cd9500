"""The only wiring: processes that join log, artifacts, arena and trainer. They share nothing but the broker.

- ``cli``         the ``league`` command
- ``run``         a run's folder and its broker
- ``runtime``     what every worker process does: connect, fold, serve, drain
- ``rollout``     plays training matches
- ``evaluator``   plans evaluations and plays their matches
- ``rater``       turns results into ratings, promotions and retirements
- ``archivist``   seals, archives and snapshots the history
- ``trainer``     turns rollouts into gradient steps and published policies
- ``policies``    which of a league's policies a process serves
- ``matches``     plays one match between agents and reports it
- ``models``      base model and adapters, ready for a backend
- ``players``     a language model in a seat
- ``remote``      one behind a server, in a seat; ``remote_model`` asks it, ``billing`` says what that costs
- ``reaching``    the inference servers that a league knows
- ``inference/``  backends that sample from models
- ``supervisor``  starts, watches and restarts the workers of one machine
- ``founding/``   how a run begins: opened, branched or imported
- ``reading/``    what the commands read a league with
- ``dashboard``   the live progress table
"""
