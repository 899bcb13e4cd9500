"""The tables ``agents``, ``policies`` and ``schedule``."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from schemas.config.base import Plugin, Table, parse_http_url
from schemas.errors import ConfigError
from schemas.numbers import Count, Finite, NonNegativeFloat, PositiveFloat, PositiveInt


class RemoteAgentConfig(Table, frozen=True):
    """A remote agent: a model behind a server with OpenAI's chat interface."""

    url: str
    """Base URL, up to and including the version: ``https://host/v1``."""
    model: str
    key_variable: str = ""
    """Environment variable that holds the key on every machine that plays the agent; empty if the server requires none.
    The key itself must not stand here: the configuration is part of the history."""
    training: bool = False
    """Whether samplers may draw the agent for training matches. By default only ``evaluation`` can name it, since every
    move may cost money."""
    temperature: NonNegativeFloat = 1.0
    max_tokens: PositiveInt = 1024
    """Maximum tokens per reply."""
    limit_field: str = "max_tokens"
    """Name of that limit in requests; some servers expect ``max_completion_tokens``."""
    extra: dict[str, Any] = {}
    """Additional fields of every request: ``{ reasoning_effort = "low" }``."""
    timeout_s: PositiveFloat = 60.0
    """Timeout of one reply in seconds, from the request to its last byte."""
    tries: PositiveInt = 4
    """Attempts per reply before the match fails."""
    requests: PositiveInt = 8
    """Maximum concurrent requests per worker."""
    prompt_price: NonNegativeFloat = 0.0
    """Price per million prompt tokens, in any currency."""
    completion_price: NonNegativeFloat = 0.0
    """Price per million completion tokens, reasoning tokens included."""
    budget: NonNegativeFloat | None = None
    """Maximum cost of the agent in this league, in the currency of the prices; None for no limit. An agent that has
    spent it is paused: it is not drawn, and its matches fail, until the budget is raised. The cost may exceed the
    budget by that of requests in flight, and by what workers have not reported yet (matches in progress, and at most a
    minute)."""

    @property
    def play_settings(self) -> dict[str, Any]:
        """Settings that affect how the agent plays; the others concern its server."""
        return {name: getattr(self, name) for name in ("model", "temperature", "max_tokens", "extra")}


def _check_remote(where: str, remote: RemoteAgentConfig) -> None:
    url = parse_http_url(remote.url)
    # What stands before the host or after the path would be a key, which the history must not hold.
    if url is None or "@" in url.netloc or url.query:
        raise ConfigError(
            f"{where}.url: expected an address like 'https://host/v1', without user, password or query "
            "(key_variable names the variable that holds a key)"
        )
    if not remote.model:
        raise ConfigError(f"{where}.model: empty; expected the model's name at the server")
    if remote.budget is not None and not (remote.prompt_price or remote.completion_price):
        raise ConfigError(f"{where}.budget: no price; expected prompt_price or completion_price with a budget")


class SearchConfig(Table, frozen=True):
    """Search at decision time: plays the sampled action with the best rollouts.

    The agent plays in evaluation and benchmarks only, since the version that it searches with changes.
    """

    policy: str = ""
    """Policy whose newest published version proposes actions; empty for ``trainer.policy``."""
    samples: PositiveInt = 8
    """Actions sampled per decision, from the policy and from each bot of ``proposals``."""
    proposals: list[str] = []
    """Scripted agents that propose further actions, without a model call."""
    replacements: Count = 0
    """Maximum variants of the best action with one part of another candidate (Diplomacy: one unit's order)."""
    rollouts: PositiveInt = 1
    """Rollouts per candidate action."""
    most_rollouts: Count = 0
    """Rollouts of the actions that remain best after ``rollouts``; 0 for no further ones."""
    margin: NonNegativeFloat = 0.0
    """Minimum lead of a variant's mean value over the action it replaces, in standard errors."""
    horizon: Count = 2
    """Length of a rollout in turns; 0 plays to the end. Unfinished games are valued by progress (Diplomacy: supply
    centres)."""
    whole_rounds: bool = False
    """Whether rollouts continue after ``horizon`` turns until the game's clock advances (Diplomacy: the new year)."""
    value: Literal["share", "squares", "fitted"] = "share"
    """Value of a position before the end: the seat's ``share`` of progress (Diplomacy: of the owned centres), at the
    end its score; ``squares``: its share of the squares of progress, at the end half of that and a half for the sole
    winner; ``fitted``: what the squares will be at the end, if the game has a value function."""
    bot: str = ""
    """Scripted agent that plays all seats in rollouts; empty for the version itself, which is slow."""
    opponent_model: bool = False
    """Whether the other seats act by a model fitted to their actions in this match, if the game has one."""
    opponent_bots: list[str] = []
    """Scripted agents that the opponent model considers; each acts with its posterior probability."""


START_RATINGS = {"base": 1000.0, "bot": 900.0, "remote": 1000.0}
"""Start ratings of agents by kind, where the settings give none."""


class AgentConfig(Table, frozen=True):
    """An agent that the league begins with."""

    kind: Literal["base", "bot", "remote", "search"]
    rating: Finite = None  # type: ignore[assignment]
    """Start rating; by default 900 for bots and 1000 for other agents."""
    baseline: bool = False
    remote: RemoteAgentConfig | None = None
    """Settings of an agent of kind ``remote``; unset for other kinds."""
    search: SearchConfig | None = None
    """Settings of an agent of kind ``search``; unset for other kinds."""

    def __post_init__(self) -> None:
        if self.rating is None:
            msgspec.structs.force_setattr(self, "rating", START_RATINGS.get(self.kind, START_RATINGS["base"]))  # type: ignore[unreachable]

    @property
    def is_drawn(self) -> bool:
        """Whether samplers may draw the agent for training matches; otherwise only ``evaluation`` can name it."""
        return self.search is None and (self.remote is None or self.remote.training)


class PolicyConfig(Table, frozen=True):
    """A policy trained beside ``trainer.policy`` in one of AlphaStar's roles (Vinyals et al. 2019).

    An exploiter is reset now and then: its last version stays in the league, and it starts again from the untrained
    adapter or from an operator's offspring, to find other weaknesses. A member of a population is reset when it is its
    weakest.
    """

    role: Literal["league_exploiter", "main", "main_exploiter", "population"]
    """``main``, ``main_exploiter`` (plays the policy ``against`` to find its weaknesses), ``league_exploiter``
    (plays the whole league) or ``population`` (trained like ``main``, and reset while it is the weakest)."""
    against: str = ""
    """The policy that a main exploiter plays; empty for ``trainer.policy``."""
    sampler: Plugin | None = None
    """Opponent sampler in place of the role's default."""
    rollout_workers: Count = 1
    reset_win_rate: Annotated[float, Meta(gt=0, le=1)] = 0.7
    """Win rate at which an exploiter is reset."""
    reset_steps: PositiveInt = 200
    """Steps after which an exploiter is reset in any case; interval between comparisons of a population's members."""
    reset_min_steps: Count | None = None
    """Steps before which an exploiter is never reset; None for half of ``reset_steps``, as in AlphaStar."""
    reset_operator: Plugin | None = None
    """Operator that makes the adapter after a reset from checkpoints; None for the untrained adapter."""
    reset_parents: list[str] = []
    """Policies whose checkpoints may be parents; in a population, also the policies that its members are compared with.
    Empty for all trained policies, or all of that role and ``trainer.policy``."""
    reset_selection: Literal["best", "uniform"] = "best"
    """Selection of parents: ``best`` takes the best rated checkpoints, of different policies if possible; ``uniform``
    draws."""
    reset_by: Literal["rating", "reward"] = "rating"
    """Criterion for the weakest member of a population and the best parents: ``rating``, or ``reward``, the mean reward
    in a policy's last 64 training matches, for arenas whose seats are not opponents; the parents are then the newest
    checkpoints."""

    def __post_init__(self) -> None:
        if self.against and self.role != "main_exploiter":
            raise ConfigError(f"against: {self.against!r}; expected it for the role 'main_exploiter' only")
        if self.reset_min_steps is not None and self.reset_min_steps > self.reset_steps:
            raise ConfigError(f"reset_min_steps: {self.reset_min_steps}; expected 0 to reset_steps, {self.reset_steps}")

    @property
    def is_exploiter(self) -> bool:
        """Whether the policy is an exploiter, which is reset once it has found weaknesses."""
        return self.role not in ("main", "population")


class CheckpointScheduleConfig(Table, frozen=True):
    """Which versions join the league, and for how long: the geometric checkpoint schedule."""

    recent_every: PositiveInt = 10
    recent_window: Count = 100
    landmark_every: PositiveInt = 100
    elite: bool = True
