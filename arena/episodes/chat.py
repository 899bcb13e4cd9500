"""Conversations: roles take turns, the environment may answer, and each role may have private observations."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from inspect import isawaitable, signature
from typing import Any

from arena.arena import Arena
from arena.episodes import Episode
from schemas.episodes import EpisodeState, Message, Role, TranscriptEntry
from schemas.errors import EpisodeError, UsageError

Text = str | Awaitable[str]


class ChatEpisode(Episode):
    """The loop of a conversation. Replies enter the transcript, which every role sees."""

    @abstractmethod
    def get_initial_actor(self, artifact: Any, state: EpisodeState) -> str:
        """The role that speaks first."""

    @abstractmethod
    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> str:
        """The opening message to all roles; may be empty."""

    @abstractmethod
    def env_response(self, state: EpisodeState, arena: Arena, artifact: Any) -> Text:
        """The environment's answer to the last reply, to all roles; may be empty. Sync or async."""

    @abstractmethod
    def is_done(self, state: EpisodeState, artifact: Any) -> bool:
        """Whether the conversation is over."""

    @abstractmethod
    def get_next_actor(self, state: EpisodeState, artifact: Any) -> str:
        """The role that speaks next; ``state.current_actor`` is the one that just spoke."""

    def get_observation(self, state: EpisodeState, arena: Arena, artifact: Any) -> Text:
        """A private observation of ``state.current_actor``, which never enters the transcript. Sync or async."""
        return ""

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
        """Alternate roles until the conversation is over.

        A method that has only parameters called ``arena``, ``artifact`` and ``state`` gets those, in whatever order.
        """
        given = {"arena": arena, "artifact": artifact, "state": state}

        def ask(method: Callable[..., Any], *order: str) -> Any:
            names = _parameter_names(getattr(method, "__func__", method))
            return method(*(given[name] for name in (names if given.keys() >= set(names) else order)))

        state.current_actor = ask(self.get_initial_actor, "artifact", "state")
        _append_entry(state, "", ask(self.get_initial_prompt, "arena", "artifact", "state"))
        while not (state.done or ask(self.is_done, "state", "artifact")):
            if state.trajectory:
                state.current_actor = ask(self.get_next_actor, "state", "artifact")
            actor = state.current_actor
            observation = await _resolve_text(ask(self.get_observation, "state", "arena", "artifact"))
            prompt = build_role_messages(arena.role(actor), state.transcript, observation)
            response = await self.call_model(actor, prompt, arena)
            _append_entry(state, actor, response.text)
            _append_entry(state, "", await _resolve_text(ask(self.env_response, "state", "arena", "artifact")))
        return state


@lru_cache(maxsize=1024)
def _parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(name for name in signature(function).parameters if name != "self")


class MultiTurnEpisode(ChatEpisode):
    """A conversation of at most ``max_turns`` calls; by default one role goes on until then."""

    def __init__(self, max_turns: int | None = None) -> None:
        """Allow ``max_turns`` model calls, one or more; None leaves the end to ``is_done`` and ``state.done``."""
        if max_turns is not None and max_turns < 1:
            raise UsageError(f"{type(self).__name__}: max_turns = {max_turns}; expected 1 or more, or None")
        self.max_turns = max_turns

    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> str:
        """No opening message."""
        return ""

    def env_response(self, state: EpisodeState, arena: Arena, artifact: Any) -> Text:
        """No answer."""
        return ""

    def is_done(self, state: EpisodeState, artifact: Any) -> bool:
        """Whether all turns are over."""
        return self.max_turns is not None and state.turn >= self.max_turns

    def get_next_actor(self, state: EpisodeState, artifact: Any) -> str:
        """The same role again."""
        return state.current_actor


class AlternatingRolesEpisode(MultiTurnEpisode):
    """Two or more roles that speak in turn."""

    role_ids: Sequence[str] = ()
    """The roles in the order in which they speak; empty for all of the arena, as they were registered."""

    def __init__(self, role_ids: Sequence[str] = (), max_turns: int | None = None) -> None:
        """Two or more different roles, by default the class's, and the total of model calls."""
        super().__init__(max_turns)
        self.role_ids = tuple(role_ids or self.role_ids)
        if self.role_ids:
            self._check_roles(self.role_ids)

    def get_initial_actor(self, artifact: Any, state: EpisodeState) -> str:
        """The first role."""
        self._check_roles(self.role_ids or state.role_ids)
        return (self.role_ids or state.role_ids)[0]

    def get_next_actor(self, state: EpisodeState, artifact: Any) -> str:
        """The next role in the order."""
        roles = self.role_ids or state.role_ids
        return roles[(roles.index(state.current_actor) + 1) % len(roles)]

    def _check_roles(self, roles: Sequence[str]) -> None:
        if len(roles) < 2 or len(set(roles)) != len(roles):
            raise UsageError(f"{type(self).__name__}: roles {list(roles)}; expected two or more different ones")


class SingleTurnEpisode(MultiTurnEpisode):
    """One question, one answer."""

    role_id: str = ""
    """The role that answers; empty for the arena's only one."""

    def __init__(self, role_id: str = "") -> None:
        super().__init__(max_turns=1)
        self.role_id = role_id or self.role_id

    @abstractmethod
    def get_prompt(self, artifact: Any) -> str:
        """The question."""

    def get_initial_actor(self, artifact: Any, state: EpisodeState) -> str:
        """The only role."""
        if not self.role_id and len(state.role_ids) != 1:
            raise EpisodeError(
                f"{type(self).__name__}: the arena's roles are {list(state.role_ids)}; expected a role_id"
            )
        return self.role_id or state.role_ids[0]

    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> str:
        """The question."""
        return self.get_prompt(artifact)


CONTINUE_PROMPT = "Go on."
"""User message to a role that speaks twice in a row."""


def build_role_messages(role: Role, transcript: Sequence[TranscriptEntry], observation: str = "") -> list[Message]:
    """The conversation from a role's side: its own words are the assistant's, all others' the user's.

    The observation ends this conversation and never enters the transcript, so that no other role ever sees it, nor this
    one later.
    """
    messages = [Message("system", role.system_prompt)] if role.system_prompt else []
    pending: list[str] = []
    for entry in transcript:
        if entry.speaker != role.id:
            pending.append(f"{entry.speaker}: {entry.text}" if entry.speaker else entry.text)
            continue
        messages += [*_user_messages(pending), Message("assistant", entry.text)]
        pending = []
    return messages + (_user_messages([*pending, *filter(None, [observation])]) or [Message("user", CONTINUE_PROMPT)])


def _user_messages(parts: Sequence[str]) -> list[Message]:
    """One message: chat templates require the two sides to alternate."""
    return [Message("user", "\n\n".join(parts))] if parts else []


def _append_entry(state: EpisodeState, speaker: str, text: str) -> None:
    if text:
        state.transcript.append(TranscriptEntry(speaker, text))


async def _resolve_text(text: Text) -> str:
    return text if isinstance(text, str) or not isawaitable(text) else await text
