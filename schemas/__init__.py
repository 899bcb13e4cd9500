"""Messages and values that every other package shares. msgspec only; no I/O.

- ``errors``        the one error hierarchy
- ``events``        the immutable facts of the league's history
- ``jobs``          requests that lie on the work queue
- ``trajectories``  what a seat saw, sampled and earned: the trainer's raw material
- ``episodes``      roles, model calls and what came of them as a tree; ``credit`` and ``batches`` lead to the trainer
- ``standings``     the read-only table of agents that samplers decide from
- ``config``        the configuration of a league
- ``plugins``       plugins by name, found in their folder
- ``codec``         structs to bytes and back, with versions and upcasters
- ``subjects``      names of streams and subjects
- ``ids``           deterministic ids, digests and seeds
"""
