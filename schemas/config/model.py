"""The tables ``model``, ``inference`` and ``prompts``."""

from typing import Any

from schemas.config.base import Table
from schemas.errors import ConfigError, format_choices


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
    lora_rank: int = 16
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
    max_rows: int = 256
    """Sequences decoded at once."""
    max_adapters: int = 16
    """Adapters kept ready; the least recently used one makes room, once no match under way plays with it. The
    opponents of one match need no more than fit beside the hero's own: else they are cloned over the seats."""
    max_lora_rank: int | None = None
    """Largest rank of an adapter that is loaded, an imported one for example; None for ``model.lora_rank``."""
    temperature: float = 1.0
    """Of training matches."""
    evaluation_temperature: float = 1.0
    top_p: float = 1.0
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
    """Servers that this league does not manage: ``http://host:8000``. Inference processes or vLLM's own
    servers (``league vllm``), which they say themselves; not both, and none of vLLM's beside ``servers``."""
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
    free_tokens: int | None = None
    """Most tokens that the model may write of its own before its constrained answer, 0 for none; None leaves it to the
    game's own settings."""
    reduced: bool = False
    """Whether the question leaves out what follows from the rest of it, in games that can (``SupportsBrief``)."""
    reply: str = "constrained"
    """``constrained``: the answer can only be a legal one. ``free``: the model says anything, and its move is read."""
    observation: str = ""
    """Of free replies: one of UnstableBaselines' ways to ask, by name (``arena/prompts/extraction.py``), instead of a
    conversation."""
    extractor: str = "whole"
    """Of free replies: where the move stands in them, by name (``arena/prompts/extraction.py``)."""
    invalid: str = "default"
    """What is played where a reply holds no legal move: what the game does by ``default``, a ``random`` legal action,
    or nothing, since the match is to ``fail``. A reply that holds a part of one is completed by the game's default."""
    reply_tokens: int = 1024
    """Most tokens of a free reply."""

    def __post_init__(self) -> None:
        for key, allowed in (("reply", ("constrained", "free")), ("invalid", ("default", "fail", "random"))):
            if getattr(self, key) not in allowed:
                raise ConfigError(f"prompts.{key}: {getattr(self, key)!r}; expected {format_choices(allowed)}")
        if self.free_tokens is not None and self.free_tokens < 0:
            raise ConfigError(f"prompts.free_tokens: {self.free_tokens}; expected 0 or more")
        if self.reply_tokens < 1:
            raise ConfigError(f"prompts.reply_tokens: {self.reply_tokens}; expected 1 or more")
        if self.reply == "free" and self.free_tokens is not None:
            raise ConfigError(
                "prompts.free_tokens: a free reply has no constrained part; expected reply_tokens instead"
            )
        if self.reply == "constrained" and (self.observation or self.extractor != "whole"):
            key = "observation" if self.observation else "extractor"
            raise ConfigError(f"prompts.{key}: {getattr(self, key)!r}; expected it with reply = 'free' only")
        if self.observation and self.template != "auto":
            raise ConfigError(f"prompts.template: {self.template!r}; expected 'auto', the observation has a family")
