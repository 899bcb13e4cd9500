"""Models behind a server with OpenAI's chat interface.

- ``remote_player``  remote agents in the seats of games and the roles of episodes
- ``model``          requests to one remote agent, with retries and a budget
- ``http_client``    the HTTP client for servers outside the league
- ``openai_client``  an ``InferenceClient`` without a league

Here is the cost of requests: tokens as servers count them, at the configured prices, metered for a seat of a match.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from schemas.config import RemoteAgentConfig
from schemas.metrics import REMOTE_METRICS

_MAX_TOKEN_COUNT = 1 << 53


class TokenUsage(msgspec.Struct, frozen=True):
    """Token usage of one request, as its server counts it."""

    prompt: int
    completion: int
    total: int
    """At least the sum of the two; more where the server does not break it down."""

    def cost(self, config: RemoteAgentConfig) -> float:
        """Cost in the currency of the prices; tokens that are not broken down cost the higher price."""
        other = self.total - self.prompt - self.completion
        dearer = max(config.prompt_price, config.completion_price)
        money = self.prompt * config.prompt_price + self.completion * config.completion_price + other * dearer
        return money / 1e6


class RemoteUsage(msgspec.Struct):
    """Totals of several requests; fields as in ``RemoteAsked``."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tokens: int = 0
    uncounted: int = 0
    cost: float = 0.0

    def add(self, other: "RemoteUsage") -> None:
        """Add other totals."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class _UsageResponse(msgspec.Struct):
    usage: Any = None


def parse_usage(data: bytes) -> TokenUsage | None:
    """The token usage in an answer; None where it does not say how many tokens there were."""
    try:
        usage = msgspec.json.decode(data, type=_UsageResponse).usage
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not isinstance(usage, dict):
        return None
    counts = [usage.get(f"{part}_tokens") for part in ("prompt", "completion", "total")]
    prompt, completion, total = (
        count if type(count) is int and 0 <= count < _MAX_TOKEN_COUNT else None for count in counts
    )
    if total is None and (prompt is None or completion is None):
        return None
    known = (prompt or 0) + (completion or 0)
    return TokenUsage(prompt or 0, completion or 0, max(total or 0, known))


class RemoteUsageMeter:
    """Meters the requests, tokens and cost of a seat: base of a seat's player, or of its client.

    ``counted`` names further totals in ``_counts``.
    """

    def __init__(self, *counted: str) -> None:
        self._counts = dict.fromkeys(("seconds", *counted), 0.0)
        self._total = RemoteUsage()
        self._unreported = RemoteUsage()

    @asynccontextmanager
    async def _measure(self) -> AsyncIterator[RemoteUsage]:
        """Totals for one request, added to the seat's also when it fails."""
        tally = RemoteUsage()
        try:
            yield tally
        finally:
            self._total.add(tally)
            self._unreported.add(tally)

    def drain_usage(self) -> RemoteUsage:
        """The usage since the last call."""
        usage, self._unreported = self._unreported, RemoteUsage()
        return usage

    def metrics(self) -> dict[str, float]:
        """Totals, as ``SeatResult.metrics`` has them.

        ``remote_requests`` sent, ``remote_tokens`` as the server counts them, ``remote_prompt_tokens`` and
        ``remote_completion_tokens`` as far as it breaks them down, ``remote_cost`` and ``remote_uncounted`` as in
        ``RemoteAsked``, ``remote_seconds`` of waiting, and the further counts.
        """
        counted = {name: round(count, 3) for name, count in self._counts.items()}
        totals = msgspec.structs.asdict(self._total) | counted
        return {REMOTE_METRICS + name: float(value) for name, value in totals.items()}
