"""Opening, running, changing, restoring and releasing a league.

- ``open``               opens a league: streams, base model, first events
- ``run_league``         runs a league on one machine, from its opening to its report
- ``branch``             starts a run as a copy of another run's history, or rebuilds it from its archive
- ``import_registry``    starts a run from another program's registry, or from a release
- ``trust``              what settings from elsewhere would reach, and the same settings without it
- ``import_results``     imports another system's results into a league; ``external_results`` reads its files
- ``connect_machine``    runs workers on another machine
- ``control``            pause, resume and other commands to an open league; due promotions
- ``reconfigure``        changes of an open league's configuration; configurations as TOML
- ``void_matches``       voids matches
- ``config_checks``      checks a whole configuration before anything is started
- ``config_notes``       what a valid configuration comes to, and remarks on it
- ``machine_checks``     checks the machine against it: base model, packages, stores of blobs
- ``presets``            configurations to start from, by hardware, game and model
- ``resource_estimate``  memory and disk that a configuration needs, from the base model's dimensions
- ``model_checks``       checks that a base model and an adapter can be trained and played with
- ``release``            writes a release: one version with everything needed to play it (``release_query``
                         reads the history, ``model_card`` describes it)
- ``parity``             compares a backend's log-probabilities with the learner's
- ``backends``           that comparison on this machine, for a league
- ``league_models``      a league's models outside its workers: a small base model, a merged agent
- ``benchmark``          plays an agent against one opponent, on a running or a stopped league
- ``maintenance``        checks a machine, and a run's folder or broker; deletes blobs that no event refers to
- ``standalone/``        an arena in one process, without a broker
"""
