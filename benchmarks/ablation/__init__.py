"""The league against mirror self-play, where the answer can be computed: games small enough for exact best responses.

``python -m benchmarks.ablation run DIR`` trains every arm in every game from the same seeds and keeps each run's
history; ``report DIR`` computes all figures and charts from what was kept.

- ``games``     the games, and the budget that every arm has in each of them
- ``arms``      what differs: who is met, and by whom; everything else is the game's, for all arms alike
- ``local``     a league in one process without a broker: its history, rollouts and adapters in memory
- ``driver``    trains one run with the real workers, and keeps its history, base model and adapters
- ``trees``     a listed game as a tree: values, exact best responses, mixtures of policies
- ``runs``      many runs, in processes that each train one after the other
- ``policies``  what an adapter plays at every information state, by the learner's own forward pass
- ``plan``      which runs are trained where nothing else is asked for
- ``trials``    where a game has no tree: what versions of a finished run are put to
- ``exploiters``  what a policy takes that is trained against a run's frozen one
- ``heldout``   what a run's policy takes from scripted bots that nobody met in training
- ``examination``  how many fixed questions the students of a run with teachers answer
- ``measures``  exploitability of a run's newest policy and of its population, step by step
- ``intervals``  means over seeds
- ``tables``    tables and charts
- ``prediction``  which rating system predicts the runs' matches best (``predict DIR``)
"""
