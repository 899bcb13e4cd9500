"""Parts of an episode: roles, model calls, and their results as a tree.

An episode's ``Step`` is one model call in text; its ``tokens`` are a ``trajectories.ModelCall``, as of a seat of a
match, so that the learner trains on episodes and matches alike (``schemas.batches.TrainingBatch``).

Everything but ``EpisodeState`` is immutable: rubrics and credit assigners return numbers, and copies carry them.
Numerous structs are untracked by the garbage collector (``gc=False``): they are never part of a reference cycle.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from schemas import trajectories
from schemas.errors import EpisodeError


class Message(msgspec.Struct, frozen=True, gc=False):
    """One part of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str

    def keys(self) -> tuple[str, ...]:
        """Names of the fields: with ``[]`` it reads as a dictionary, and ``dict(message)`` is one."""
        return self.__struct_fields__

    def __getitem__(self, name: str) -> str:
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return str(getattr(self, name))


Messages = Sequence[Message | Mapping[str, str]]
"""A conversation; dictionaries have the keys ``role`` and ``content``."""


def as_messages(conversation: Messages) -> list[Message]:
    """The conversation with its dictionaries as messages; ``EpisodeError`` for one that is none, by its number."""
    messages = []
    for number, one in enumerate(conversation, 1):
        try:
            messages.append(one if isinstance(one, Message) else msgspec.convert(one, Message))
        except msgspec.ValidationError as error:
            raise EpisodeError(
                f"message {number}: found {repr(one)[:200]} ({error}); expected a role of 'system', 'user' or "
                "'assistant', and text as content"
            ) from None
    return messages


GREEDY_TEMPERATURE = 1e-6
"""Stands for a temperature of 0: the most likely token has all the probability, unless another is as likely."""


class Role(msgspec.Struct, frozen=True):
    """A trainable entity: one way of the same model to behave.

    A judge, which only scores, is not a role; its replies are never trained on.
    """

    id: str
    system_prompt: str = ""
    temperature: float = 1.0
    max_tokens: int | None = None
    """Maximum tokens of a reply; None leaves it to the client."""

    def build_messages(self, user_content: str, history: Messages | None = None) -> list[Message]:
        """A conversation: the system prompt, if any, the history, and the user's message."""
        head = [Message("system", self.system_prompt)] if self.system_prompt else []
        return [*head, *as_messages(history or ()), Message("user", user_content)]


class ModelResponse(msgspec.Struct, frozen=True, gc=False):
    """A model's reply."""

    text: str
    tokens: trajectories.ModelCall | None = None
    """Prompt and reply as they were sampled, with clock and progress 0; None for a client without token ids."""
    finish_reason: str = "stop"
    """``stop`` when the model ended the reply, ``length`` when it was truncated."""
    missing_tokens: str = ""
    """Reason why there are no ``tokens``, where they were requested."""

    @property
    def completion(self) -> list[Message]:
        """The reply as conversation messages."""
        return [Message("assistant", self.text)]


class Step(msgspec.Struct, frozen=True, gc=False):
    """One call of the model by a role."""

    role_id: str
    prompt: list[Message]
    completion: list[Message]
    tokens: trajectories.ModelCall | None = None
    """The same in token ids; ``clock`` is the number of the call unless the episode sets it. Without tokens the step is
    not trained on."""
    reward: float = 0.0
    """Reward of its role, from the rubric."""
    advantage: float = 0.0
    """Advantage by the credit assigner."""
    info: dict[str, Any] = {}
    """User data of the call, from the episode, and fields of ``tokens`` that became known after the reply. What the
    episode adds reaches rubrics and credit assigners here, and the learner as ``tokens.info``."""

    @property
    def completion_text(self) -> str:
        """Text of the completion."""
        return "".join(message.content for message in self.completion)

    @property
    def actor_id(self) -> str:
        """The same as ``role_id``."""
        return self.role_id

    @property
    def prompt_token_ids(self) -> list[int] | None:
        """Token ids of the prompt, where known."""
        return self.tokens.prompt_ids if self.tokens else None

    @property
    def completion_token_ids(self) -> list[int] | None:
        """Token ids of the completion, where known."""
        return self.tokens.completion_ids if self.tokens else None

    @property
    def completion_logprobs(self) -> list[float] | None:
        """Log-probabilities (nats) of the sampled tokens, one for each 1 of ``action_mask``."""
        return self.tokens.logprobs if self.tokens else None


class Rollout(msgspec.Struct, frozen=True):
    """The record of one episode."""

    id: str
    """Unique in the run: the parent's id and the episode's number under it."""
    episode_type: str
    artifact: Any
    """Artifact that the episode was about."""
    steps: list[Step]
    """Model calls, in the order in which they were made."""
    policy_version: int = 0
    """Newest policy version when the episode was requested; ``Step.tokens`` holds the one that sampled a call."""
    meta: dict[str, Any] = {}
    """Metadata of the request."""
    extras: dict[str, Any] = {}
    """Data that the episode passes to the rubric."""
    rewards: dict[str, float] = {}
    """Weighted sum of the reward functions by role; empty if the episode failed."""
    metrics: dict[str, float] = {}
    """Unweighted value of each reward function by ``function/role``."""
    parent: str = ""
    """Id of the episode that requested this one."""
    depth: int = 0
    """Number of ancestors."""
    group: str = ""
    """Group in which rewards are compared: by default the parent's children, or all root episodes."""
    group_size: int = 0
    """Members of the group; 0 to compare those present."""
    is_trainable: bool = True
    """Whether the episode is trained on; false for one that only informs another, and for its descendants."""
    failure: str = ""
    """Reason of a failure, which excludes the episode from training; empty for success."""
    started_at: float = 0.0
    """Unix time, in seconds."""
    ended_at: float = 0.0

    @property
    def advantages(self) -> dict[str, float]:
        """Mean advantage of the steps, by role."""
        by_role: dict[str, list[float]] = {}
        for step in self.steps:
            by_role.setdefault(step.role_id, []).append(step.advantage)
        return {role: sum(values) / len(values) for role, values in by_role.items()}

    def comparison_group(self, role_id: str) -> str:
        """Name of the group in which a role's reward is compared: one level, one parent, one type, one role."""
        return f"{self.depth}|{self.group or self.parent}|{self.episode_type}|{role_id}"


class GenerateResult(msgspec.Struct, frozen=True):
    """An episode and its children."""

    rollout: Rollout
    children: "list[GenerateResult]" = []

    @property
    def rewards(self) -> dict[str, float]:
        """Rewards by role; empty if the episode failed."""
        return self.rollout.rewards

    @property
    def failure(self) -> str:
        """Reason of a failure, if any."""
        return self.rollout.failure

    def all_rollouts(self) -> list[Rollout]:
        """The whole tree: an episode before its children, children in their order."""
        return [self.rollout, *(rollout for child in self.children for rollout in child.all_rollouts())]


class TranscriptEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry of the transcript that all roles see."""

    speaker: str
    """A role's id; empty for the environment."""
    text: str


class EpisodeState(msgspec.Struct, kw_only=True):
    """Mutable state of a running episode; episodes that need more subclass it."""

    trajectory: list[Step] = []
    """Model calls so far, in the order in which they were made."""
    transcript: list[TranscriptEntry] = []
    """Public utterances so far."""
    current_actor: str = ""
    """Role whose turn it is."""
    data: dict[str, Any] = {}
    """Facts of play; the rubric sees those that ``Episode.get_extras`` returns."""
    done: bool = False
    child_results: list[GenerateResult] = []
    """Results of the episodes that this one requested."""
    rollout_id: str = ""
    role_ids: tuple[str, ...] = ()
    """Ids of the arena's roles, in the order in which they were registered."""
    seed: int = 0
    """Seed of all the episode's randomness."""

    @property
    def turn(self) -> int:
        """Model calls so far."""
        return len(self.trajectory)

    @property
    def last_step(self) -> Step | None:
        """The last model call."""
        return self.trajectory[-1] if self.trajectory else None

    @property
    def last_completion_text(self) -> str:
        """Text of the last completion; empty before the first."""
        return self.trajectory[-1].completion_text if self.trajectory else ""


class EpisodeRequest(msgspec.Struct, frozen=True):
    """An episode to run."""

    episode_type: str
    artifact: Any = None
    store: str = ""
    """Store to draw the artifact from if none is given."""
    weighted: bool = False
    """Whether artifacts are drawn by weight."""
    meta: dict[str, Any] = {}
    is_trainable: bool = True
    """Whether the episode and its children may be trained on."""
    group: str = ""
    """Comparison group, as in ``Rollout``; equal for the requests of one group on different workers."""
    group_size: int = 0
    policy_version: int = 0


class Artifact(msgspec.Struct, frozen=True):
    """A subject of episodes: a topic, a problem, a document."""

    data: Any
    """JSON values."""
    id: str = ""
    """Id of the artifact; empty for a digest of its content."""
    weight: float = 1.0
    """Relative weight in weighted draws."""


class ArtifactAdded(msgspec.Struct, frozen=True):
    """An artifact added to a store, or replacing the one with its id."""

    store: str
    artifact: Artifact


def unconstrained_model_call(
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    logprobs: Sequence[float],
    version: int = 0,
    temperature: float = 1.0,
) -> trajectories.ModelCall:
    """Record an unconstrained reply, every token of which was sampled from the whole vocabulary.

    ``logprobs`` has one (nats) for each of ``completion_ids``, at ``temperature``.
    """
    positions = list(range(len(completion_ids)))
    return trajectories.ModelCall(
        prompt_ids=list(prompt_ids),
        completion_ids=list(completion_ids),
        branches=positions,
        logprobs=list(logprobs),
        allowed=[[] for _ in positions],
        version=version,
        clock=0,
        progress=0.0,
        temperature=temperature,
    )
