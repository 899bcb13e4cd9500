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
REPLY_OPENING = 16
"""Sampled tokens that make the opening of a reply, or fewer where it is shorter."""
ONE_OPENING = 0.95
"""Share of a step's replies with the same opening, of all or turn by turn, above which they have collapsed to one."""
ONE_PROMPT = 0.6
"""Share of a turn's prompts that are the same above which nothing is said about its replies."""
NO_REPLY = 1.5
"""Mean tokens of a step's free replies below which they have collapsed: most consist of the end token."""
FEW_REPLIES = 32
"""Replies of a step below which nothing is said about their collapse."""
MOSTLY_ZERO = 0.5
"""Share of zero advantages above which a gradient step raises an alarm: little is learned from it."""
STILL_KL = 1e-4
"""KL of a step, in nats a token, below which a policy may stand still."""
STILL_ENTROPY = 0.1
"""Relative change of the entropy up to which a policy may stand still."""
STILL_STEPS = 30
"""Steps of a policy that stands still after which an alarm begins."""
REMOTE_METRICS = "remote_"
"""Prefix of a seat's metrics that count requests to a remote agent."""
NGRAMS = "ngrams"
"""Metric of a seat in a training match: its distinct n-grams of actions."""
NEW_NGRAMS = "ngrams_new"
"""Metric of a seat in a training match: n-grams that the worker had not seen lately from its player."""


class InferenceMetrics(msgspec.Struct, frozen=True):
    """Current load of a backend, and totals since it started."""

    backend: str
    queued: int = 0
    running: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens served from the cache."""
    sampled_tokens: int = 0
    forced_tokens: int = 0
    tokens_s: float = 0.0
    """Recent rate of sampled and forced tokens per second."""
    busy_share: float = 0.0
    """Recent share of time spent computing."""
    adapters: int = 0
    slots: int = 0
    """Maximum adapters per batch; 0 for no limit."""
    most_adapters: int = 0
    """Adapters kept in memory, fewer than configured if memory is short."""
    swaps: int = 0
    """Adapters loaded, or replaced in place."""
    cache_bytes: int = 0
    published: int = 0
    """Published versions sampled from so far. Seconds from their recording to the first token:"""
    last_swap_s: float = 0.0
    mean_swap_s: float = 0.0
    max_swap_s: float = 0.0


class MatchMetrics(msgspec.Struct, frozen=True):
    """Figures of a process that plays matches."""

    games_in_flight: int = 0
    games: int = 0
    """Finished matches since the process started."""
    failed: int = 0
    games_s: float = 0.0
    """Recent matches per second."""
    record_bytes: int = 0
    """Compressed bytes of game records stored by the process."""
    record_s: float = 0.0
    """Seconds spent storing them, summed over matches."""


class TrainingMetrics(msgspec.Struct, frozen=True):
    """Figures of a trainer."""

    policy: str
    step: int = 0
    wait_share: float = 0.0
    """Share of the last step spent waiting for trajectories."""
    tokens_s: float = 0.0
    """Trained tokens per second in the last step."""
    metrics: dict[str, float] = {}
    """Metrics of the last step, as in ``GradientStepTaken``."""


class GpuMetrics(msgspec.Struct, frozen=True):
    """A GPU available to a process; its figures include other processes."""

    index: int
    """Index of the GPU on its machine, by the driver."""
    name: str
    busy_share: float | None = None
    """Recent share of time in use; None if the driver does not report it."""
    used_bytes: int | None = None
    memory_bytes: int | None = None


class Heartbeat(msgspec.Struct, frozen=True):
    """One process at one moment."""

    worker: str
    role: str
    incarnation: str
    """Id of this start of the process, as in ``WorkerJoined``."""
    host: str
    pid: int
    uptime_s: float
    memory_bytes: int
    """Resident memory of the process without its children."""
    cpu_share: float
    """Recent CPU use in cores; 1 is one core fully used."""
    open_files: int
    sequence: int
    """Sequence of the newest event folded."""
    lag: int
    """Events recorded but not yet folded."""
    inference: InferenceMetrics | None = None
    play: MatchMetrics | None = None
    training: TrainingMetrics | None = None
    gpus: list[GpuMetrics] = []
    """GPUs that the process computes on."""


class WorkerHeartbeat(msgspec.Struct, frozen=True):
    """A heartbeat and its age."""

    heartbeat: Heartbeat
    age_s: float
    """Age by the broker's clock, so that machines' clocks do not matter."""
