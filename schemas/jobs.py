"""Requests on the work queue: imperative, gone once acknowledged, not part of the history."""

import msgspec


class PlayMatch(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """Play one match between named agents and report it."""

    match_id: str
    purpose: str
    seats: list[str]
    """Agent per seat."""
    seed: int
    evaluation_id: str = ""

    @property
    def key(self) -> str:
        """Deterministic identity of the request."""
        return f"play:{self.match_id}"
