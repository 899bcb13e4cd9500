"""The append-only history of a league, and the other streams on its broker.

- ``base``          ``EventLog``, the contract
- ``jetstream``     the implementation on NATS JetStream
- ``publisher``     message ids, and duplicates that are compared
- ``streams``       the configuration of all streams
- ``queues``        the work queue (``WORK``) and the bounded stream of trajectories (``EXPERIENCE``)
- ``metrics``       heartbeats of processes (``METRICS``)
- ``open_batches``  who leaves atomic batches open
- ``dead_letters``  messages that could not be decoded, and jobs that were given up (``DEAD``)
- ``connection``    connections to a broker and its errors; ``access`` presents credentials; ``pull`` reads a stream,
                    ``consumers`` names what it reads with
- ``server``        the embedded ``nats-server`` of a run; ``cluster`` a cluster on this machine; ``bound_process``
                    ends their processes after their last user
"""
