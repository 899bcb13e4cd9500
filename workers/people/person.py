"""A person in a seat of a game: asked as a remote agent is, in the game's own words, and answers when they like."""

import asyncio
from random import Random

import msgspec

from arena.games.base import Action, Game
from arena.games.texts import Words
from schemas.errors import GameError, UsageError
from workers.people.choices import Choice, choices_of

HUMAN = "human"
"""Who sits in a person's seat, in the history."""


class Question(msgspec.Struct, frozen=True):
    """What a person is asked."""

    number: int
    """Counted from 1; an answer says which question it is for."""
    text: str
    choices: list[Choice]


class Person:
    """A person in one seat of one match.

    Args:
        words: How the game is said.
        patience_s: How long a question waits for its answer.
    """

    def __init__(self, words: Words, patience_s: float) -> None:
        self.words = words
        self.question: Question | None = None
        """What waits for an answer."""
        self.game: Game | None = None
        """The position, once there is one; only to be looked at."""
        self.stage = ""
        """What is being done before the first question; empty once everybody is seated."""
        self.changes = 0
        """Grows whenever there is something new to see."""
        self._patience_s = patience_s
        self._asked = 0
        self._seat = self._seed = 0
        self._reply: asyncio.Future[Action] | None = None
        self._why_left = ""
        self._changed = asyncio.Condition()

    async def act(self, game: Game, seat: int, seed: int) -> Action:
        """What the person answers.

        Raises:
            GameError: they left, or gave no answer in time.
        """
        self._check_here()
        self.game, self._seat, self._seed = game, seat, seed
        self._asked += 1
        self._reply = asyncio.get_running_loop().create_future()
        self.question = Question(self._asked, self.words.question(game, seat), choices_of(self.words, game, seat))
        await self.tell()
        try:
            async with asyncio.timeout(self._patience_s):
                return await self._reply
        except TimeoutError:
            raise GameError(f"the person gave no answer within {self._patience_s:g} s") from None
        finally:
            self.question = self._reply = None
            await self.tell()

    def answer(self, number: int, reply: str) -> None:
        """Take an answer.

        Args:
            number: Of the question.
            reply: What was chosen or written; where it is no legal move, nothing happens.

        Raises:
            UsageError: the question is another one by now, or the reply is not legal in every part.
        """
        if self.question is None or self._reply is None or self._reply.done() or number != self.question.number:
            raise UsageError(f"question {number} does not wait for an answer any more")
        assert self.game is not None
        understood = self.words.understand(self.game, self._seat, reply, Random(self._seed))
        if understood.illegal:
            raise UsageError(
                f"{understood.illegal} of {understood.choices} choices: nothing legal in the answer; "
                "expected one of what is listed for each"
            )
        self._reply.set_result(understood.action)

    def leave(self, why: str) -> None:
        """End the match, now or with the next question."""
        self._why_left = self._why_left or why
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(GameError(self._why_left))

    def _check_here(self) -> None:
        if self._why_left:
            raise GameError(self._why_left)

    async def wait_for(self, stage: str, game: Game) -> None:
        """Have the person see the table while it is being made ready.

        Args:
            stage: What is being done; empty when nothing is left to do.
            game: At its beginning.
        """
        self.stage, self.game = stage, game
        await self.tell()

    async def tell(self) -> None:
        """Say that there is something new to see."""
        self.changes += 1
        async with self._changed:
            self._changed.notify_all()

    async def changed(self, since: int, timeout_s: float) -> None:
        """Wait until there is more to see than at ``since`` changes, or for ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.changes > since)
        except TimeoutError:
            return
