"""A simulated broker: nats-server with JetStream, in memory and in virtual time.

``clients`` speaks the wire protocol, so the real client library is part of the simulation; ``server`` routes messages,
``writes`` stores them, and ``api`` answers the requests of JetStream over ``stream`` and ``consumer``. It passes the
contract suites of the real server.
"""
