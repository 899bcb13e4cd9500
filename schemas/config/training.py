"""The tables ``model``, ``inference``, ``prompts``, ``experience``, ``trainer`` and ``stop``."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from schemas.config.base import Plugin, Table
from schemas.errors import ConfigError
from schemas.numbers import FINITE, Count, InParallel, NonNegativeFloat, PositiveFloat, PositiveInt, Processes, Share


class ExperienceConfig(Table, frozen=True):
    """Limits of the stream between rollout workers and trainers."""

    max_messages: PositiveInt = 4_096
    """Maximum trajectories of a policy that may wait; its rollout workers pause above that. At least as many as a
    gradient step takes."""
    max_bytes: PositiveInt = 256 * 1024 * 1024
    """Maximum size of the waiting trajectories of all policies together."""
    copies: Literal[1, 3] = 3
    """Replicas of a waiting trajectory on a cluster, 1 or 3, fixed when the league is opened. 1 takes a third of the
    disk and network, but lowers the rate at which trajectories are written (one node flushes each by itself). While the
    node that holds them is down, none can be read or added, and if its disk is lost, so are the trajectories that
    waited there; the history is complete either way."""


class TransformsConfig(Table, frozen=True):
    """Transforms of rewards on their way to the advantage estimator, each list in its order.

    Scores in events and trajectories stay unchanged, so that other transforms can train from the same matches.
    """

    final: tuple[Plugin, ...] = ()
    """Transforms of the seats' final scores, from which the reward is then computed."""
    step: tuple[Plugin, ...] = ()
    """Transforms of the rewards of a trajectory's steps."""
    sampling: tuple[Plugin, ...] = ()
    """Transforms of the rewards of a whole batch."""


class BufferConfig(Table, frozen=True):
    """How batches are drawn from the waiting trajectories, and which of these are stale."""

    level: Literal["episode", "step"] = "episode"
    """Unit of a batch. ``episode``: ``rollouts_per_step`` whole trajectories. ``step``: ``steps_per_batch`` waiting
    model calls, so that a trajectory may be trained on in parts; credit is always assigned over the whole
    trajectory."""
    strategy: Plugin = Plugin(name="oldest")
    """Order in which batches are drawn: ``oldest``, ``prioritised`` or ``uniform``."""
    batch_delay: Annotated[float, Meta(ge=1, le=FINITE)] = 1.0
    """Batches' worth of trajectories that must wait before one batch is drawn from them. At most
    ``rollout.ahead_steps``, since play does not go further ahead."""
    capacity: PositiveInt | None = None
    """Maximum trajectories that the trainer holds, including those it has read ahead; None for one batch more than the
    window it draws from. Others wait in the stream, and rollout workers pause when that is full."""
    steps_per_batch: PositiveInt | None = None
    """Model calls per batch; set if and only if ``level`` is ``step``."""
    shares: dict[str, Share] = {}
    """Share of a batch by game; other games fill the share that a game cannot."""
    staleness: Literal["mean", "newest", "oldest"] = "oldest"
    """Version from which a trajectory's lag is computed: of its ``oldest`` or ``newest`` step, or their ``mean``."""
    drop_old_steps: bool = False
    """Whether stale steps are dropped and the rest of their trajectory kept."""

    def __post_init__(self) -> None:
        if (self.steps_per_batch is not None) != (self.level == "step"):
            raise ConfigError("steps_per_batch: expected at level 'step', and only there")
        if sum(self.shares.values()) > 1 + 1e-9:
            raise ConfigError(f"shares: {self.shares}; expected a sum of at most 1")

    def window(self, rollouts_per_step: int) -> int:
        """Trajectories that a batch is drawn from."""
        return max(round(self.batch_delay * rollouts_per_step), 1)


class GroupAssemblyConfig(Table, frozen=True):
    """How long a trainer waits for the missing members of a group (``trainer.max_lag_steps`` bounds it in versions)."""

    max_open: PositiveInt = 1_000
    """Maximum incomplete groups; beyond that the oldest is given up."""
    least: PositiveInt | None = None
    """Minimum members for training on a group that was given up; None never trains on one."""


class TrainerConfig(Table, frozen=True):
    """The trainer of each policy."""

    workers: Processes = 1
    policy: str = "main"
    rollouts_per_step: PositiveInt = 70
    max_lag_steps: Count = 4
    """Maximum lag in steps; older trajectories are stale: dropped and counted."""
    buffer: BufferConfig = BufferConfig()
    gathering: GroupAssemblyConfig = GroupAssemblyConfig()
    dump: str = ""
    """Folder where every batch is saved as Parquet for inspection, relative to the run's folder; empty saves none."""
    dump_files: PositiveInt = 50
    """Maximum saved batches; the oldest are deleted."""
    device: str = "cpu"
    dtype: Literal["bfloat16", "float32"] = "float32"
    """Type of the base model's weights, ``float32`` or ``bfloat16``. The adapter is trained in float32, and logits are
    converted to it. Rollout workers should use the same type (``dtype`` in ``inference.options``)."""
    threads: InParallel = 1
    """CPU threads per rank."""
    ranks: PositiveInt = 1
    """Processes that share every minibatch and hold the same adapter: one per GPU with the device ``cuda``, on this
    machine or under ``torchrun`` on several. Resuming is exact only with the same number."""
    rank_timeout_s: PositiveFloat = 600.0
    """Seconds that a rank waits for the others before it fails."""
    reward: Plugin = Plugin(name="progress")
    advantage: Plugin = Plugin(name="clock_leave_one_out")
    part_credit: Share = 0.0
    """Weight, 0 to 1, of the credit that the game assigns to a choice's own part of the action, against the advantage
    of the whole step. For games that credit parts (Diplomacy: each unit's order)."""
    loss: Plugin = Plugin(name="ppo_clip")
    backend: Plugin = Plugin(name="auto")
    """Library that runs the model: ``native`` (the decoder of ``models``), ``peft`` (transformers and PEFT, any
    family), or ``auto``: ``native`` for models made here and Llama-type models on a CPU, else ``peft``."""
    transforms: TransformsConfig = TransformsConfig()
    learner: dict[str, Any] = {}
    """Settings of the optimiser and of minibatches (``trainer.learner``)."""


class StopCriterion(Table, frozen=True):
    """Stops training once the hero's win rate in benchmark games exceeds a bound with 95 % confidence."""

    opponent: str
    win_rate: Share
    """Bound on the lower end of the 95 % Wilson interval."""


class StopConfig(Table, frozen=True):
    """Conditions that end the training of ``trainer.policy`` and all other policies.

    The first condition met ends it. None set means never.
    """

    steps: Count | None = None
    games: Count | None = None
    """Training matches of all policies together."""
    minutes: NonNegativeFloat | None = None
    """Minutes for which ``trainer.policy`` trains, summed over restarts."""
    criterion: StopCriterion | None = None


class ModelConfig(Table, frozen=True):
    """The base model and the shape of its adapters."""

    base: str = "made"
    """``made`` (a small model initialised for the game, without a download), a folder, or a hub id."""
    shape: dict[str, Any] = {}
    """Dimensions of a made model (``models.BaseShape``)."""
    clone_bot: str = "random_bot"
    """Bot whose play a made model imitates before the league starts."""
    cloning: dict[str, Any] = {}
    """Settings of that imitation (``models.behaviour_cloning.CloningConfig``)."""
    lora_rank: PositiveInt = 16
    lora_alpha: PositiveFloat = 32.0
    lora_targets: tuple[str, ...] = ()
    """Linear layers with adapters, by the last part of their names: ``("q_proj", "v_proj")``. Empty for all in
    attention and MLP."""
    lora_layers: tuple[Count, ...] = ()
    """Layers with adapters, by their indices from 0; empty for all. The last half costs half of the backward pass."""
    adapter: str = ""
    """Initial adapter in place of a fresh one, also after a reset: a folder in PEFT's format with the same rank, alpha
    and targets, or the digest of one in the blob store."""


class InferenceConfig(Table, frozen=True):
    """How rollout and evaluator processes sample from models."""

    backend: str = "local"
    device: str = "cpu"
    threads: InParallel = 1
    max_rows: PositiveInt = 256
    """Maximum sequences decoded at once."""
    max_adapters: PositiveInt = 16
    """Maximum adapters kept in memory; the least recently used one outside of matches in progress is evicted. If the
    opponents of one match do not fit beside the hero's adapter, fewer are drawn and take several seats each."""
    max_lora_rank: PositiveInt | None = None
    """Maximum rank of a loaded adapter, an imported one for example; None for ``model.lora_rank``."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature in training matches."""
    evaluation_temperature: PositiveFloat = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Nucleus sampling mass, for training and evaluation."""
    colocate: bool = False
    """Whether the single inference process and the trainer take turns on one GPU: the backend sleeps and requests wait
    during a gradient step; between steps, the trainer's base model moves to host memory."""
    servers: Processes = 0
    """Inference servers on every machine that runs ``league up``, used by all rollout and evaluator workers. With 0,
    and without ``urls``, every worker loads the model in its own process."""
    host: str = "127.0.0.1"
    """Address that servers listen on. They require the token in the environment variable ``LEAGUE_INFERENCE_TOKEN``,
    without which a non-loopback address is rejected and a loopback one takes the token in the run's
    ``inference.token``."""
    urls: tuple[str, ...] = ()
    """Addresses of inference servers that this league does not manage: ``http://host:8000``."""
    request_timeout_s: PositiveFloat = 300.0
    """Timeout of one request, in seconds; the request then goes to another server."""
    patience_s: NonNegativeFloat = 120.0
    """Seconds that a request waits while no server answers; then its match fails."""
    session_s: PositiveFloat = 3600.0
    """Seconds within which a session of the opponent pool must be reported; later it counts as abandoned."""
    options: dict[str, Any] = {}
    """Settings of the backend, as its config struct documents them: ``reuse_tokens`` of ``local``, ``max_loras`` of
    ``vllm``."""


class PromptsConfig(Table, frozen=True):
    """How models are prompted for moves, and how replies are read.

    Models made for a game's pieces have their own language and support the defaults only.
    """

    template: str = "auto"
    """Chat template: a family of ``arena/prompts`` by name, or ``auto`` for the template in the model's folder, else
    its family's, else ``plain``."""
    thinking: bool = False
    """Whether the model may think before it answers, if its chat template has the switch (Qwen3)."""
    system: str = ""
    """System prompt before the game's rules."""
    free_tokens: Count | None = None
    """Maximum free tokens before a constrained answer, 0 for none; None for the game's own setting."""
    reduced: bool = False
    """Whether questions omit what follows from the rest of the position, as the legal moves, in games that support it
    (``SupportsBrief``)."""
    reply: Literal["constrained", "free"] = "constrained"
    """``constrained`` restricts replies to legal answers; ``free`` lets the model write any text and parses a move from
    it."""
    observation: str = ""
    """Observation format of UnstableBaselines in place of a conversation, by name (``arena/prompts/extraction.py``);
    free replies only."""
    extractor: str = "whole"
    """Extractor of the move from a reply, by name (``arena/prompts/extraction.py``); free replies only."""
    invalid: Literal["default", "fail", "random"] = "default"
    """Action after a reply without a legal move: the game's ``default``, a ``random`` legal action, or ``fail`` to fail
    the match. The game's default completes a reply that holds part of an action."""
    reply_tokens: PositiveInt = 1024
    """Maximum tokens of a free reply."""
    second_question: bool = False
    """Whether a free reply without a legal move is answered by one more question that names the error. The second reply
    is played but not trained on."""

    def __post_init__(self) -> None:
        if self.reply == "free" and self.free_tokens is not None:
            raise ConfigError(
                "prompts.free_tokens: a free reply has no constrained part; expected reply_tokens instead"
            )
        if self.reply == "constrained" and (self.observation or self.extractor != "whole"):
            key = "observation" if self.observation else "extractor"
            raise ConfigError(f"prompts.{key}: {getattr(self, key)!r}; expected it with reply = 'free' only")
        if self.second_question and (self.reply != "free" or self.observation or self.invalid == "fail"):
            raise ConfigError(
                "prompts.second_question: true; expected it with reply = 'free', without an observation, and with "
                "invalid = 'default' or 'random'"
            )
        if self.observation and self.template != "auto":
            raise ConfigError(f"prompts.template: {self.template!r}; expected 'auto' with an observation")
