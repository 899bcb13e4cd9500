"""Whoever completes conversations for an arena.

- ``base``      the contract
- ``scripted``  says what it was told to, for tests and benchmarks
- ``improvising``  says what an arena's ``improvise`` does: its scripted agents

Clients that need a model or a network are in ``workers``.
"""

from arena.clients.base import InferenceClient
from arena.clients.scripted import ScriptedClient

__all__ = ["InferenceClient", "ScriptedClient"]
