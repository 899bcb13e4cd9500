"""Parts of the trainer worker.

- ``gathering``  from the stream of rollouts into the buffer, and from there into batches
- ``learners``   which learner a policy's training begins or goes on with, as the history says
"""
