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
    """Up to and including the version: ``https://host/v1``."""
    model: str
    key_variable: str = ""
    """Name of the environment variable that holds the key, on every machine that plays the agent; empty for a server
    that wants none. The key itself has no place here: the configuration is part of the history."""
    training: bool = False
    """Whether samplers may draw it for training matches. Otherwise it is met only where ``evaluation`` names it, since
    every move of it may cost money."""
    temperature: NonNegativeFloat = 1.0
    max_tokens: PositiveInt = 1024
    """Of one reply."""
    limit_field: str = "max_tokens"
    """Name of that limit in requests; some want ``max_completion_tokens``."""
    extra: dict[str, Any] = {}
    """Further fields of every request, in the server's words: ``{ reasoning_effort = "low" }``."""
    timeout_s: PositiveFloat = 60.0
    """For one reply, from the request to its last byte."""
    tries: PositiveInt = 4
    """Requests for one reply before the match counts as failed."""
    requests: PositiveInt = 8
    """Largest number of concurrent requests of one worker."""
    prompt_price: NonNegativeFloat = 0.0
    """Of a million tokens that it is sent, in any currency."""
    completion_price: NonNegativeFloat = 0.0
    """Of a million tokens that it writes, those that it thinks included."""
    budget: NonNegativeFloat | None = None
    """What it may cost in this league, in the currency of the prices. Once that is spent the agent pauses: it is
    neither drawn nor placed, and matches with it fail, those under way too, until the budget is raised. More may be
    spent by what requests under way cost, and by what each worker has not reported to the others yet, of matches
    under way and for a minute at most. None for no limit."""

    @property
    def play_settings(self) -> dict[str, Any]:
        """The settings that affect how the agent plays; the others concern its server."""
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
        raise ConfigError(f"{where}.model: found nothing; expected the name that the server knows the model by")
    if remote.budget is not None and not (remote.prompt_price or remote.completion_price):
        raise ConfigError(f"{where}.budget: found no price that it could be spent at; expected completion_price too")


class SearchConfig(Table, frozen=True):
    """Search at decision time: a policy's actions are sampled, and the best of them by rollouts is played.

    The agent plays in evaluation and benchmarks only, since the version that it searches with changes.
    """

    policy: str = ""
    """Policy whose newest published version is searched with; empty for ``trainer.policy``."""
    samples: PositiveInt = 8
    """Actions sampled for a decision, from the policy and from each bot of ``proposals``."""
    proposals: list[str] = []
    """Scripted agents whose actions are candidates beside the policy's."""
    replacements: Count = 0
    """Variants of the best action with one part of another candidate (Diplomacy: one unit's order), at most."""
    rollouts: PositiveInt = 1
    """Rollouts of each different action."""
    most_rollouts: Count = 0
    """Rollouts of the actions that are still the best after fewer; 0 for ``rollouts``, the same number for all."""
    margin: NonNegativeFloat = 0.0
    """Standard errors by which a variant's mean value has to be above that of the action that it replaces."""
    horizon: Count = 2
    """Turns of a rollout; 0 plays to the end. Positions before the end count by progress, as centres in Diplomacy."""
    whole_rounds: bool = False
    """Whether rollouts go on after ``horizon`` turns until the game's clock advances, in Diplomacy to the new year."""
    value: Literal["share", "squares", "fitted"] = "share"
    """Value of a position: the seat's ``share`` of progress, or of its ``squares``, which counts who leads; ``fitted``,
    where the game has a value function, for what the squares will be at the end."""
    bot: str = ""
    """Scripted agent that plays all seats in rollouts; empty for the version itself, which is slow."""
    opponent_model: bool = False
    """Whether the other seats act by a model fitted to what they played in this match, where the game has one."""
    opponent_bots: list[str] = []
    """Scripted agents that another seat may be: it acts as one of them as often as its orders make that probable."""


START_RATINGS = {"base": 1000.0, "bot": 900.0, "remote": 1000.0}
"""Start ratings of agents by kind, where the settings give none."""


class AgentConfig(Table, frozen=True):
    """An agent that the league begins with."""

    kind: Literal["base", "bot", "remote", "search"]
    rating: Finite = None  # type: ignore[assignment]
    """Start rating; by default 1000 of a base model or a remote agent, 900 of a bot."""
    baseline: bool = False
    remote: RemoteAgentConfig | None = None
    """Of an agent of kind ``remote``, and only of those."""
    search: SearchConfig | None = None
    """Of an agent of kind ``search``, and only of those."""

    def __post_init__(self) -> None:
        if self.rating is None:
            msgspec.structs.force_setattr(self, "rating", START_RATINGS.get(self.kind, START_RATINGS["base"]))  # type: ignore[unreachable]

    @property
    def is_drawn(self) -> bool:
        """Whether samplers may draw it for training matches; otherwise it is met where evaluation names it."""
        return self.search is None and (self.remote is None or self.remote.training)


class PolicyConfig(Table, frozen=True):
    """A policy that is trained beside ``trainer.policy``, in a role of its own (AlphaStar's, Vinyals et al. 2019).

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
    """Instead of the one that goes with the role."""
    rollout_workers: Count = 1
    reset_win_rate: Annotated[float, Meta(gt=0, le=1)] = 0.7
    """An exploiter that takes this share of the points from its opponents is reset."""
    reset_steps: PositiveInt = 200
    """At the latest after so many steps; a member of a population is compared with the others after every so many."""
    reset_min_steps: Count | None = None
    """However much it takes, not before so many steps; None for half of ``reset_steps``, as in AlphaStar."""
    reset_operator: Plugin | None = None
    """Operator on adapters that makes the adapter after a reset of checkpoints; None for the untrained adapter."""
    reset_parents: list[str] = []
    """Policies whose checkpoints may be parents; for the role ``population`` also the policies among which it has to be
    the weakest. Empty for all trained policies, or all of that role and ``trainer.policy``."""
    reset_selection: Literal["best", "uniform"] = "best"
    """``best`` takes the best rated checkpoints, of different policies as far as there are any; ``uniform`` draws."""
    reset_by: Literal["rating", "reward"] = "rating"
    """What tells the weakest member of a population and the best parents: ``rating``, or ``reward``, the mean reward in
    a policy's last 64 training matches, where seats are no opponents; the parents are then the newest checkpoints."""

    def __post_init__(self) -> None:
        if self.against and self.role != "main_exploiter":
            raise ConfigError(f"against: {self.against!r}; expected it for the role 'main_exploiter' only")
        if self.reset_min_steps is not None and self.reset_min_steps > self.reset_steps:
            raise ConfigError(f"reset_min_steps: {self.reset_min_steps}; expected 0 to reset_steps, {self.reset_steps}")

    @property
    def is_exploiter(self) -> bool:
        """Whether it exists to find weaknesses, and is reset once it has."""
        return self.role not in ("main", "population")


class CheckpointScheduleConfig(Table, frozen=True):
    """Which versions join the league, and for how long: the geometric checkpoint schedule."""

    recent_every: PositiveInt = 10
    recent_window: int = 100
    landmark_every: PositiveInt = 100
    elite: bool = True
