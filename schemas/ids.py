"""Deterministic ids, digests and seeds: equal inputs give equal outputs on every machine and on every day."""

import hashlib

HUMAN = "human"
"""Agent name of a person in a seat."""
_MAX_DIGITS = 18


def digest(data: bytes) -> str:
    """SHA-256 of ``data`` in hex: the name of an artifact."""
    return hashlib.sha256(data).hexdigest()


OPERATOR = "operator"
"""``ExternalVersionAdded.worker`` of a version that ``league agent add`` added."""
SESSION_PREFIX = "session-s"
"""Begins the match ids of sessions; a worker's end in a number after the dash."""


def session_match_id(agent: str, session: str) -> str:
    """Match id of a session of an external agent: equal names give equal ids."""
    return f"{SESSION_PREFIX}{digest(f'{agent}{chr(0)}{session}'.encode())[:24]}"


def derive_seed(master: int, *names: str | int) -> int:
    """A 63-bit seed for one named purpose, e.g. ``derive_seed(seed, "match", match_id)``.

    Different names give independent seeds; nothing depends on the order in which seeds are asked for.
    """
    text = "\x1f".join([str(master), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def agent_name(policy: str, version: int) -> str:
    """The agent that a policy is at a version: ``main@120``."""
    return f"{policy}@{version}"


def policy_of(agent: str) -> str:
    """Policy of an agent named by ``agent_name``; empty for all others."""
    return (split_agent(agent) or ("", 0))[0]


def split_agent(agent: str) -> tuple[str, int] | None:
    """Policy and version of an agent named by ``agent_name``; None for all others.

    Only its own spelling counts (``main@7``, not ``main@07``), so that joining the parts gives the name again.
    """
    policy, at, version = agent.rpartition("@")
    if not (policy and at and version.isascii() and version.isdigit() and len(version) <= _MAX_DIGITS):
        return None
    return (policy, int(version)) if version == "0" or version[0] != "0" else None
