"""The history of a league, append only.

- ``base``       ``EventLog``, the contract that all implementations share
- ``memory``     a reference implementation, for tests and for reading the contract
- ``jetstream``  the real one, on NATS JetStream
- ``streams``    the other two streams: jobs (``WORK``) and rollouts (``EXPERIENCE``)
- ``server``     the embedded ``nats-server`` of a run
"""
