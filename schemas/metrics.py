"""Heartbeats of processes: current figures, sent every few seconds, kept for a minute and never part of the history.

Of them only their absence has an effect: the rater records a silent worker as left, and a newcomer may take over the
name of one. The history records both.
"""

import msgspec

HEARTBEAT_S = 5.0
"""Seconds between heartbeats of a process."""
SILENCE_TIMEOUT_S = 3 * HEARTBEAT_S
"""Seconds without a heartbeat after which a process counts as silent."""
REPLY_METRICS = "reply_"
"""Prefix of a seat's metrics that count replies of the league's own models."""
REPLY_FAULTS = ("truncated", "empty", "unparsable", "illegal")
"""Kinds of replies without a legal action: cut off; without text; without a move; with a move that is not legal."""
REMOTE_METRICS = "remote_"
"""Prefix of a seat's metrics that count requests to a remote agent."""
NGRAMS = "ngrams"
"""Metric of a seat in a training match: its distinct n-grams of actions."""
NEW_NGRAMS = "ngrams_new"
"""Metric of a seat in a training match: those n-grams that its player had not shown lately to the worker."""


class InferenceMetrics(msgspec.Struct, frozen=True):
    """Current load of a backend, and its totals since it started."""

    backend: str
    queued: int = 0
    running: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens, those that were not computed again."""
    sampled_tokens: int = 0
    forced_tokens: int = 0
    tokens_s: float = 0.0
    """Sampled and forced tokens a second, lately."""
    busy_share: float = 0.0
    """Share of the time, lately, that was spent computing."""
    adapters: int = 0
    slots: int = 0
    """Adapters that one batch can hold; 0 for no bound."""
    most_adapters: int = 0
    """Adapters that the process keeps ready: fewer than configured where memory is short."""
    swaps: int = 0
    """Adapters that were loaded, or replaced in place."""
    cache_bytes: int = 0
    published: int = 0
    """Published versions that were sampled from for the first time; of these, in seconds from their recording to the
    first token:"""
    last_swap_s: float = 0.0
    mean_swap_s: float = 0.0
    max_swap_s: float = 0.0


class MatchMetrics(msgspec.Struct, frozen=True):
    """Figures of a process that plays matches."""

    games_in_flight: int = 0
    games: int = 0
    """Played to their end since it started."""
    failed: int = 0
    games_s: float = 0.0
    """Lately."""
    record_bytes: int = 0
    """Of game records that the process has stored, compressed."""
    record_s: float = 0.0
    """Spent storing them, in seconds of all matches together."""


class TrainingMetrics(msgspec.Struct, frozen=True):
    """Figures of a trainer."""

    policy: str
    step: int = 0
    wait_share: float = 0.0
    """Share of the last step's time that was spent waiting for rollouts."""
    tokens_s: float = 0.0
    """Trained on a second, in the last step."""
    metrics: dict[str, float] = {}
    """Of the last step, as ``GradientStepTaken`` has them."""


class GpuMetrics(msgspec.Struct, frozen=True):
    """A GPU that a process may compute on; what others do on it counts too."""

    index: int
    """As its driver counts them on the machine."""
    name: str
    busy_share: float | None = None
    """Share of the time, lately, in which something was computed; None where the driver does not say."""
    used_bytes: int | None = None
    memory_bytes: int | None = None


class Heartbeat(msgspec.Struct, frozen=True):
    """One process at one moment."""

    worker: str
    role: str
    incarnation: str
    """Different for every start of the process, as in ``WorkerJoined``."""
    host: str
    pid: int
    uptime_s: float
    memory_bytes: int
    """Resident, of this process without its children."""
    cpu_share: float
    """Cores' worth of computing, lately; 1 is one core busy all the time."""
    open_files: int
    sequence: int
    """Of the newest event that it has taken in."""
    lag: int
    """Events that were recorded and not taken in."""
    inference: InferenceMetrics | None = None
    play: MatchMetrics | None = None
    training: TrainingMetrics | None = None
    gpus: list[GpuMetrics] = []
    """Of a process that computes on some; empty where there is none."""


class WorkerHeartbeat(msgspec.Struct, frozen=True):
    """A heartbeat, and when the broker got it."""

    heartbeat: Heartbeat
    age_s: float
    """By the broker's clock, so that no machine's own matters."""
