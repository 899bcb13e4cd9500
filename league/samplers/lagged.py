"""The policy's own past: checkpoints a number of versions, or of checkpoints, behind the live version."""

from typing import Literal

from league.samplers.base import SAMPLERS, Bucket, live_hero
from league.samplers.mix import MixSampler, MixSettings, by_weight
from schemas.errors import ConfigError
from schemas.standings import Standings


@SAMPLERS.register("lagged")
class LaggedSettings(MixSettings, frozen=True, forbid_unknown_fields=True):
    """``[matchmaking.sampler.settings]`` of ``lagged``."""

    lag_range: tuple[int, int] = (1, 100)
    """Smallest and largest lag, inclusive, from 1: lag 0 is the mirror."""
    unit: Literal["versions", "checkpoints"] = "versions"
    """``versions``: gradient steps behind the live version. ``checkpoints``: 1 is the newest one before it, retired
    ones counted, so that a retirement changes no lag."""

    def __post_init__(self) -> None:
        low, high = self.lag_range
        if not 1 <= low <= high:
            raise ConfigError(f"lag_range: [{low}, {high}]; expected two numbers with 1 <= low <= high")

    def build(self) -> "Lagged":
        """Builds the sampler with these settings."""
        return Lagged(self)


class Lagged(MixSampler):
    """Uniform over the policy's active checkpoints inside the range, the bucket ``lagged``.

    When there are none (the history is too short, or those in the range have retired), the bucket ``nearest`` holds the
    active checkpoint with the lag nearest to the range, the later one of two equally near. Without any active past
    checkpoint the ``mirror`` is played.

    Source: Unstable Baselines' sampling mode ``lagged``.
    """

    name = "lagged"
    reads = ("agents", "live")

    def __init__(self, settings: LaggedSettings) -> None:
        super().__init__(settings.max_distinct)
        self._low, self._high = settings.lag_range
        self._unit = settings.unit

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``."""
        hero, _ = live_hero(standings, hero_policy)
        lags = self._lags(standings, hero_policy)
        lagged = {name: 1.0 for name, lag in lags.items() if self._outside(lag) == 0}
        nearest = (
            {} if lagged else dict.fromkeys(sorted(lags, key=lambda a: (self._outside(lags[a]), lags[a]))[:1], 1.0)
        )
        return by_weight({"lagged": lagged, "nearest": nearest}, hero)

    def _lags(self, standings: Standings, hero_policy: str) -> dict[str, int]:
        """Lag of every active past checkpoint of the policy."""
        live = standings.live[hero_policy].version
        past = [
            agent
            for agent in standings.agents.values()
            if agent.kind == "checkpoint" and agent.policy == hero_policy and agent.version < live
        ]
        past.sort(key=lambda agent: (-agent.version, agent.name))
        return {
            agent.name: place if self._unit == "checkpoints" else live - agent.version
            for place, agent in enumerate(past, start=1)
            if agent.active
        }

    def _outside(self, lag: int) -> int:
        """Distance of a lag from the range; 0 inside."""
        return max(self._low - lag, lag - self._high, 0)
