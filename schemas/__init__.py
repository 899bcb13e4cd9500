"""Messages and values that every other package shares. msgspec only; no I/O.

- ``core``          the core types on one page, importable from one module
- ``config``        the configuration of a league, a module per group of tables
- ``events``        the immutable facts of a league's history, a module per subject
- ``jobs``          requests on the work queue
- ``trajectories``  what a seat saw, sampled and earned: the trainer's raw material
- ``decisions``     rows of what models were asked and said, and of the credit it earned
- ``episodes``      roles, model calls and their results as a tree
- ``batches``       model calls of episodes with their credit, for the trainer
- ``standings``     the read-only table of agents that samplers decide from
- ``metrics``       the heartbeats of worker processes
- ``errors``        the error hierarchy; untrusted text in messages
- ``plugins``       plugins by name, found in their folder
- ``codec``         structs to bytes and back, with versions and upcasters
- ``subjects``      names of streams and subjects
- ``ids``           deterministic ids, digests and seeds
- ``numbers``       bounds of the numbers in messages; sets of sequences as ranges
- ``files``         locks, and folders that appear whole
- ``interpreter``   the command of a Python process
- ``retry``         exponential backoff with jitter
- ``loggers``       loggers that import structlog with their first line
"""
