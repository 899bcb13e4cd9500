"""The tables ``model``, ``inference``, ``prompts``, ``experience``, ``trainer`` and ``stop``."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from schemas.config.base import Plugin, Table
from schemas.errors import ConfigError
from schemas.numbers import FINITE, Count, PositiveFloat, PositiveInt, Share


class ExperienceConfig(Table, frozen=True):
    """Limits of the stream between rollout workers and trainers."""

    max_messages: PositiveInt = 280
    """When so many rollouts of a policy wait, its rollout workers wait too."""
    max_bytes: int = 256 * 1024 * 1024
    """Of the rollouts of all policies together."""
    copies: Literal[1, 3] = 3
    """Of a rollout on a cluster, 1 or 3, as the league is opened. With 1, rollouts take a third of disk
    and network, but fewer of them a second (one node flushes each by itself), and none is taken or trained on while the
    node is away that holds them; those that waited there are lost with its disk: the history lacks nothing."""


class TransformsConfig(Table, frozen=True):
    """Transforms of rewards on their way to the advantage estimator, each list in its order.

    Scores in events and trajectories stay unchanged, so that other transforms can train from the same matches.
    """

    final: tuple[Plugin, ...] = ()
    """Of the seats' final scores, from which the reward is then computed."""
    step: tuple[Plugin, ...] = ()
    """Of the rewards of a rollout's steps."""
    sampling: tuple[Plugin, ...] = ()
    """Of the rewards of a whole batch."""


class BufferConfig(Table, frozen=True):
    """How batches are drawn from the waiting trajectories, and which of these are stale."""

    level: Literal["episode", "step"] = "episode"
    """``episode``: a batch is ``rollouts_per_step`` whole rollouts. ``step``: it is ``steps_per_batch`` model calls of
    those that wait, so that a rollout is trained on in parts; credit is always that of the whole rollout."""
    strategy: Plugin = Plugin(name="oldest")
    """In what order: ``oldest``, ``prioritised`` or ``uniform``."""
    batch_delay: Annotated[float, Meta(ge=1, le=FINITE)] = 1.0
    """Batches of rollouts that must wait before one is drawn, and that it is drawn from. At most
    ``rollout.ahead_steps``, since play does not go further ahead."""
    capacity: int | None = None
    """The most rollouts that the trainer holds: those it draws from, and those it has read ahead. None for one batch
    more than it draws from. The others wait in the stream, and when that is full its rollout workers wait."""
    steps_per_batch: PositiveInt | None = None
    """At level ``step``, and only there."""
    shares: dict[str, Share] = {}
    """Share of a batch, by game. What a game cannot fill goes to the others."""
    staleness: Literal["mean", "newest", "oldest"] = "oldest"
    """The version that a rollout's lag is judged by: that of its ``oldest`` or ``newest`` step, or the ``mean``."""
    drop_old_steps: bool = False
    """Leave out the steps whose own lag is too large, and keep the rest of the rollout."""

    def __post_init__(self) -> None:
        if (self.steps_per_batch is not None) != (self.level == "step"):
            raise ConfigError("steps_per_batch: expected at level 'step', and only there")
        if sum(self.shares.values()) > 1 + 1e-9:
            raise ConfigError(f"shares: {self.shares}; expected numbers that are together no more than 1")

    def window(self, rollouts_per_step: int) -> int:
        """Rollouts that a batch is drawn from."""
        return max(round(self.batch_delay * rollouts_per_step), 1)


class GroupAssemblyConfig(Table, frozen=True):
    """How long a trainer waits for the missing members of a group (``trainer.max_lag_steps`` bounds it in versions)."""

    max_open: PositiveInt = 1_000
    """Groups that are waited for at once; beyond that the oldest is given up."""
    least: PositiveInt | None = None
    """Members from which a group that is given up is trained on nevertheless; None for never."""


class TrainerConfig(Table, frozen=True):
    """The trainer."""

    workers: int = 1
    policy: str = "main"
    rollouts_per_step: PositiveInt = 70
    max_lag_steps: int = 4
    """Rollouts sampled by a version more than so many steps old are dropped and counted."""
    buffer: BufferConfig = BufferConfig()
    gathering: GroupAssemblyConfig = GroupAssemblyConfig()
    dump: str = ""
    """Folder that every batch is written to as Parquet, for looking at; beside the run's other files unless it begins
    with ``/``. Empty for none."""
    dump_files: PositiveInt = 50
    """The newest so many are kept."""
    device: str = "cpu"
    dtype: Literal["bfloat16", "float32"] = "float32"
    """Of the base model's weights, ``float32`` or ``bfloat16``. The adapter is trained in float32, and logits are taken
    to it; what plays should compute in the same (``dtype`` in ``inference.options``)."""
    threads: int = 1
    """Of each rank."""
    ranks: PositiveInt = 1
    """Processes that share every minibatch and hold the same adapter: one for each GPU, with the device ``cuda``; on
    this machine, or under ``torchrun`` on several. Resuming is exact for the same number of them."""
    rank_timeout_s: PositiveFloat = 600.0
    """Seconds that a rank waits for the others before it gives up."""
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
    """Settings of the optimiser and of minibatches; ``trainer.learner`` explains them."""


class StopCriterion(Table, frozen=True):
    """Stop once the hero's share of won benchmark games exceeds a bound with 95 % confidence."""

    opponent: str
    win_rate: float
    """Compared with the lower end of the 95 % Wilson interval."""


class StopConfig(Table, frozen=True):
    """When training of ``trainer.policy`` ends, and with it that of the others.

    The first condition met ends it. None set means never.
    """

    steps: int | None = None
    games: int | None = None
    """Training matches, of all policies together."""
    minutes: float | None = None
    """Of the training of ``trainer.policy``, summed over restarts."""
    criterion: StopCriterion | None = None


class ModelConfig(Table, frozen=True):
    """The base model and the shape of its adapters."""

    base: str = "made"
    """``made`` (a small model for the game, made without any download), a folder, or a hub id."""
    shape: dict[str, Any] = {}
    """Sizes of a made model; ``models.BaseShape`` explains them."""
    clone_bot: str = "random_bot"
    """The bot whose play a made model first imitates."""
    cloning: dict[str, Any] = {}
    """Training of a made model; ``models.behaviour_cloning.CloningConfig`` explains it."""
    lora_rank: PositiveInt = 16
    lora_alpha: float = 32.0
    lora_targets: tuple[str, ...] = ()
    """Linears that adapters sit on, by the last part of their names: ``("q_proj", "v_proj")``. Empty for all of them,
    in attention and MLP."""
    adapter: str = ""
    """What training begins with instead of a fresh adapter: a folder with one in PEFT's format, of the rank, alpha and
    linears above, or the digest of one in the object store. A reset begins with it too."""


class InferenceConfig(Table, frozen=True):
    """How rollout and evaluator processes sample from models."""

    backend: str = "local"
    device: str = "cpu"
    threads: int = 1
    max_rows: PositiveInt = 256
    """Sequences decoded at once."""
    max_adapters: PositiveInt = 16
    """Adapters kept ready; the least recently used one makes room, once no match under way plays with it. The
    opponents of one match need no more than fit beside the hero's own: else they are cloned over the seats."""
    max_lora_rank: int | None = None
    """Largest rank of an adapter that is loaded, an imported one for example; None for ``model.lora_rank``."""
    temperature: PositiveFloat = 1.0
    """Of training matches."""
    evaluation_temperature: PositiveFloat = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Of both: the nucleus that is sampled from."""
    colocate: bool = False
    """Whether the one inference process and the trainer share a GPU in turns: while a step is trained, the backend
    sleeps and requests wait; between two steps, the trainer's base model is in the host's memory."""
    servers: int = 0
    """Inference processes on every machine that runs ``league up``, which its rollout and evaluator workers, and those
    of other machines, send their requests to. At 0, and without ``urls``, every worker has the model in its own
    process."""
    host: str = "127.0.0.1"
    """Address that they listen on; other machines reach only what is not loopback, which requires a token in the
    environment variable ``LEAGUE_INFERENCE_TOKEN``."""
    urls: tuple[str, ...] = ()
    """Inference processes that this league does not manage: ``http://host:8000``."""
    request_timeout_s: float = 300.0
    """Timeout of one request to a server; then another server is tried."""
    patience_s: float = 120.0
    """How long a request waits while no server answers; then its match fails."""
    session_s: float = 3600.0
    """Time in which a session of the opponent pool has to be reported; then it counts as abandoned."""
    options: dict[str, Any] = {}
    """Further settings of the backend; its config struct explains them: ``reuse_tokens`` of ``local``, ``max_loras`` of
    ``vllm``."""


class PromptsConfig(Table, frozen=True):
    """How models are prompted for moves, and how replies are read.

    Models made for a game's pieces have their own language and support the defaults only.
    """

    template: str = "auto"
    """Format of a conversation: a family of ``arena/prompts`` by name, or ``auto`` for the chat template in the
    model's folder, else that of its family, else ``plain``."""
    thinking: bool = False
    """Whether the model may think before it answers, where its chat template has the switch (Qwen3's do)."""
    system: str = ""
    """System prompt before the game's rules."""
    free_tokens: Count | None = None
    """Most tokens that the model may write of its own before its constrained answer, 0 for none; None leaves it to the
    game's own settings."""
    reduced: bool = False
    """Whether the question leaves out what follows from the rest of it, in games that can (``SupportsBrief``)."""
    reply: Literal["constrained", "free"] = "constrained"
    """``constrained``: the answer can only be a legal one. ``free``: the model says anything, and its move is read."""
    observation: str = ""
    """Of free replies: one of UnstableBaselines' ways to ask, by name (``arena/prompts/extraction.py``), instead of a
    conversation."""
    extractor: str = "whole"
    """Of free replies: where the move stands in them, by name (``arena/prompts/extraction.py``)."""
    invalid: Literal["default", "fail", "random"] = "default"
    """What is played where a reply holds no legal move: what the game does by ``default``, a ``random`` legal action,
    or nothing, since the match is to ``fail``. A reply that holds a part of one is completed by the game's default."""
    reply_tokens: PositiveInt = 1024
    """Most tokens of a free reply."""
    second_question: bool = False
    """Whether a free reply without a legal move is followed by one more question that says what was wrong. The second
    reply is played and not trained on."""

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
            raise ConfigError(f"prompts.template: {self.template!r}; expected 'auto', the observation has a family")
