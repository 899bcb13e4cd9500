"""People in the seats of games and episodes: questions in words as for remote agents, answers whenever they come."""

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, TypeVar, cast

import msgspec

from arena.clients import InferenceClient
from arena.games.base import Action, Game
from arena.games.texts import AnswerField, Listing, SupportsAnswerFields, Words
from arena.match import SeatPlayer
from schemas.episodes import Message, ModelResponse
from schemas.errors import GameError, UsageError

_LABEL = re.compile(r"^move:?\s+", re.IGNORECASE)


def answer_fields(words: Words, game: Game, seat: int) -> list[AnswerField]:
    """A reply's fields, one a line; none where it can only be written. ``GameError`` unless the seat is to move."""
    if isinstance(game, SupportsAnswerFields):
        return list(game.answer_fields(seat))
    if not isinstance(words, Listing):
        return []
    replies = list(words.replies(game, seat))
    return [AnswerField("", replies, [_LABEL.sub("", reply) for reply in replies])] if replies else []


T = TypeVar("T")


class HumanQuestion(msgspec.Struct, frozen=True):
    """A question to a person."""

    number: int
    """Counted from 1; an answer names its question."""
    text: str
    choices: list[AnswerField]


class HumanSeat:
    """A person in one seat of one match; ``patience_s`` is how long a question waits for its answer."""

    def __init__(self, patience_s: float) -> None:
        self.question: HumanQuestion | None = None
        """The question that waits for an answer."""
        self.game: Game | None = None
        """The position, once there is one, to be read only; None where the match is no game."""
        self.stage = ""
        """The stage of preparation before the first question; empty once all seats are taken."""
        self.changes = 0
        """Grows whenever there is something new to see."""
        self._patience_s = patience_s
        self._question_count = 0
        self._parse_answer: Callable[[str], Any] = str
        self._reply: asyncio.Future[Any] | None = None
        self._leave_reason = ""
        self._change_condition = asyncio.Condition()
        self._ask_lock = asyncio.Lock()

    async def ask(self, text: str, choices: list[AnswerField], read: Callable[[str], T]) -> T:
        """Ask the person; returns the parsed answer. Concurrent questions are asked one after the other.

        ``choices`` are those of the answer's lines; none where it can only be written. ``read`` parses an answer and
        raises ``UsageError`` for one that is not legal. ``GameError`` if the person left, or gave no answer in time.
        """
        async with self._ask_lock:
            if self._leave_reason:
                raise GameError(self._leave_reason)
            self._question_count += 1
            self._parse_answer = read
            self._reply = asyncio.get_running_loop().create_future()
            self.question = HumanQuestion(self._question_count, text, choices)
            await self.notify()
            try:
                async with asyncio.timeout(self._patience_s):
                    return cast(T, await self._reply)
            except TimeoutError:
                raise GameError(f"the person gave no answer within {self._patience_s:g} s") from None
            finally:
                self.question = self._reply = None
                await self.notify()

    def answer(self, number: int, reply: str) -> None:
        """Submit an answer to the question of this number; one that is not legal changes nothing.

        ``UsageError`` if the question is another one by now, or the reply is not legal in every part.
        """
        if self.question is None or self._reply is None or self._reply.done() or number != self.question.number:
            raise UsageError(f"question {number} does not wait for an answer any more")
        self._reply.set_result(self._parse_answer(reply))

    def leave(self, why: str) -> None:
        """End the match, now or with the next question."""
        self._leave_reason = self._leave_reason or why
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(GameError(self._leave_reason))

    async def show_stage(self, stage: str, game: Game | None = None) -> None:
        """Show a stage of the preparation, empty when the match is ready, and the game at its beginning."""
        self.stage = stage
        self.game = game
        await self.notify()

    async def notify(self) -> None:
        """Notify watchers of a change."""
        self.changes += 1
        async with self._change_condition:
            self._change_condition.notify_all()

    async def wait_for_change(self, since: int, timeout_s: float) -> None:
        """Wait for more than ``since`` changes, or for ``timeout_s``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._change_condition:
                await self._change_condition.wait_for(lambda: self.changes > since)


class HumanPlayer(SeatPlayer):
    """A person as a ``Player`` of a game."""

    def __init__(self, person: HumanSeat, words: Words) -> None:
        self._person = person
        self._words = words

    async def act(self, game: Game, seat: int, seed: int) -> Action:
        """The person's action; ``GameError`` as ``HumanSeat.ask``."""

        def read(reply: str) -> Action:
            understood = self._words.understand(game, seat, reply, Random(seed))
            if understood.illegal:
                raise UsageError(
                    f"{understood.illegal} of {understood.choices} choices: nothing legal in the answer; "
                    "expected one of what is listed for each"
                )
            return understood.action

        self._person.game = game
        return await self._person.ask(self._words.question(game, seat), answer_fields(self._words, game, seat), read)


class HumanClient(InferenceClient):
    """A person as the ``InferenceClient`` of the roles of a seat."""

    def __init__(self, person: HumanSeat) -> None:
        self._person = person

    async def complete(self, messages: Sequence[Message], *_: Any, **__: Any) -> ModelResponse:
        """Show the conversation and await what the person writes; ``GameError`` as ``HumanSeat.ask``."""

        def read(reply: str) -> str:
            if not reply.strip():
                raise UsageError("nothing was written; expected some words")
            return reply

        told = (f"You said:\n{each.content}" if each.role == "assistant" else each.content for each in messages)
        return ModelResponse(await self._person.ask("\n\n".join(told), [], read))
