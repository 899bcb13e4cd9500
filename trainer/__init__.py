"""Training: trajectories in, an updated adapter out.

The path of a batch:

- ``buffer/``          trajectories that wait to be trained on, groups that are waited for, and the strategies that draw
                       a batch of them
- ``admission``        which trajectories are trained on, and why the others are rejected
- ``credit``           rewards, transforms and estimator in a row, for a batch; credit of the members of a tree of
                       episodes, and of the parts of one action
- ``rewards/``         what a step earned, before any baseline
- ``transforms/``      changes of rewards on their way to the estimator, in stages
- ``advantages/``      advantage estimators; those of total rewards are for trees of episodes too
- ``batch``            trajectories as flat arrays, minibatches and microbatches
- ``loss_inputs``      log-probabilities and entropies that a loss needs; parity with a backend's
- ``losses/``          objectives, most with a bound on the importance ratio
- ``optimizer``        AdamW on a flat vector of parameters; a learner's state on disk
- ``critic``           a learned value function, for estimators that use one
- ``backends/``        the libraries that run base model and adapter: one file each
- ``learner``          gradient steps on one adapter; ``learner_config``: its settings
- ``report``           the statistics of a step, and its batch as a Parquet file
- ``operators/``       crossover and mutation of adapters, for resets
- ``ranks``            data-parallel communication; ``rank_processes``: the processes of the other ranks

A new reward, transform, estimator, loss, learner backend or buffer strategy is one file in its folder: config struct,
implementation, ``@register("name")``.
"""
