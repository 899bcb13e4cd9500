"""Who sits in the other seats of a training match.

- ``base``     the contract of an opponent sampler, and the samplers by name
- ``pfsp``     prioritised fictitious self-play: mirror, peers, exploitable, baselines
- ``uniform``  every member of the league alike: what ``pfsp`` is measured against

A new sampler is one file here: its settings struct, its ``sample``, and ``@SAMPLERS.register("name")``.
"""
