"""Opponent samplers: they choose the agents for the other seats of a training match.

- ``base``             the protocol of a sampler, the registry of samplers, and weighted draws
- ``mix``              shared parts: drawing by bucket, and redistribution of the shares of empty buckets
- ``bucketed``         base of samplers that place every agent independently, and after a result re-place its players
- ``pfsp``             the league specification's mix: mirror, peers, exploitable, baselines; and ``tiered``, its
                       simpler one: weights 5, 2 and 0.5 by rating distance, baselines doubled
- ``alphastar``        ``win_rate``: by measured win rates; variance, linear, linear_capped or squared; and
                       ``main_exploiter``: one policy's live version, or its past while that is too strong
- ``softmax``          ``match_quality``: even matches, by the chance of a draw; ``ts_dist``: near ratings; and
                       ``exploration``: agents whose play is new to the policy
- ``rectified_nash``   PSRO's: agents in the league's equilibrium that the policy beats
- ``uniform``          all agents of a pool alike: every member of the league, the mirror included (the reference for
                       the others), Unstable Baselines' modes ``mirror``, ``fixed``, ``random`` and ``lagged``, and
                       ``policies``: versions of named policies, teachers for students, and students for teachers

Samplers draw active agents only; ``main_exploiter`` and ``policies`` also draw live versions of other policies. The
hero's live version is drawn as ``mirror`` and from no other bucket: rollout workers load it themselves. An empty bucket
leaves its share to the others in proportion; without any opponent the hero plays itself. Computed values are reused
while the parts of the standings that they depend on are the same objects. When adapter slots are short, the matchmaker
clones opponents (``league.matchmaking.pool``).

A new sampler is one file here: its settings struct, its ``distribution`` and the parts that it ``reads`` (or, where
every agent is placed independently, ``place`` and ``shares``; and ``draws``, when it does not draw a bucket and then
an agent), and ``@SAMPLERS.register("name")``.
"""
