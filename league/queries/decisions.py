"""The decision of a model in one turn of a game: prompt, reply, and the alternatives at each choice.

A record holds the actions, and the game's text is a function of the position, so prompt, reply and choices are
reconstructed from it. What cannot be reconstructed (probabilities, free replies) is in the trajectory, until a trainer
has accounted for it.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from nats.aio.client import Client

from arena.games import make_game
from arena.games.base import Action, Game, GameSpec
from arena.games.texts import Listing, SupportsWords, Words, as_grammar_text, write_reply
from arena.prompts import Chat, build_game_messages
from league.log.pull import PulledMessage, message_at, present_messages
from league.log.queues import LABEL_HEADER
from league.queries.conversation import describe_credit
from league.run import Run
from models.tokenizer import Tokenizer, find_tokenizer
from schemas.codec import decode_trajectory
from schemas.config import LeagueConfig
from schemas.episodes import Message
from schemas.errors import DecodeError, ModelError, UsageError
from schemas.subjects import EXPERIENCE_STREAM, experience_subject
from schemas.trajectories import ModelCall, Trajectory

_MAX_OPTIONS = 300


class Choice(msgspec.Struct, frozen=True):
    """A position of a reply where several tokens or pieces were allowed."""

    said: str
    allowed: list[str]
    """The alternatives, including ``said``; empty if unconstrained."""
    more: int = 0
    """Number of further alternatives that are not listed."""
    logprob: float | None = None
    """Log-probability of ``said`` in nats under the sampling distribution; None where it is not recorded."""


class Decision(msgspec.Struct, frozen=True):
    """One decision of a seat."""

    prompt: str
    reply: str
    choices: list[Choice]
    source: str
    """``kept``: from ``decisions``. ``rollout``: from the waiting trajectory. ``record``: from position and action."""
    note: str = ""
    """What is missing, and why."""
    version: int | None = None
    """Version of the policy, where the trajectory has it."""
    temperature: float | None = None
    thoughts: str = ""
    fault: str = ""
    """Why the reply holds no legal action; empty if it holds one."""
    credit: str = ""
    """Reward, advantage and gradient step in words; empty before a step has accounted for it."""

    def with_kept(self, row: Mapping[str, Any]) -> "Decision":
        """The decision with the words of its row in ``decisions``."""
        return msgspec.structs.replace(
            self,
            prompt=row["prompt"],
            reply=row["reply"],
            thoughts=row["thoughts"],
            fault=row["fault"],
            credit=describe_credit(row),
            version=row["version"],
            source="kept",
            note="",
        )


class DecisionPoint(NamedTuple):
    """A decision's place in a match."""

    spec: GameSpec
    game: Game
    """The position just before the decision."""
    action: Action
    decision_index: int
    """Index among the seat's decisions, from 0."""


def find_decision_point(record: bytes, game: str, config: LeagueConfig | None, turn: int, seat: int) -> DecisionPoint:
    """The decision of a seat in a turn, counted from 0; the configuration says how the league's models are prompted.

    Raises:
        UsageError: the seat did not move in that turn.
        LeagueError: the record is damaged, or the game cannot be played here.
    """
    spec = make_game(game, game_settings(config, game))
    recording = spec.open_record(record)
    if turn >= len(recording.turns) or seat not in recording.turns[turn]:
        raise UsageError(f"turn {turn}: seat {seat} did not move")
    for actions in recording.turns[:turn]:
        recording.start.apply(actions)
    number = sum(seat in actions for actions in recording.turns[:turn])
    return DecisionPoint(spec, recording.start, recording.turns[turn][seat], number)


def reconstruct_decisions(
    record: bytes, game: str, config: LeagueConfig | None, seats: Mapping[int, bool]
) -> dict[tuple[int, int], Decision]:
    """All decisions of some seats by turn and seat, from the record alone; raises as ``match_replay`` does.

    ``seats`` maps a seat to whether a server outside the league was prompted, in plain words.
    """
    spec = make_game(game, game_settings(config, game))
    recording = spec.open_record(record)
    decisions = {}
    for turn, actions in enumerate(recording.turns):
        for seat in sorted(actions.keys() & seats.keys()):
            moment = DecisionPoint(spec, recording.start, actions[seat], 0)
            decisions[turn, seat] = reconstruct_decision(moment, seat, config, seats[seat])
        recording.start.apply(actions)
    return decisions


def game_settings(config: LeagueConfig | None, game: str) -> dict[str, Any]:
    """The settings that say how the league's models are prompted; none for another game than the league's."""
    return config.game.settings if config is not None and config.game.name == game else {}


def reconstruct_decision(moment: DecisionPoint, seat: int, config: LeagueConfig | None, remote: bool) -> Decision:
    """A decision from the record alone; ``remote``: a server outside the league was prompted, in plain words."""
    spec, game, action, _ = moment
    if remote or (config is not None and config.prompts.reply == "free"):
        words = build_game_messages(spec.words(), game, seat) if isinstance(spec, SupportsWords) else ()
        return Decision(_messages_text(words), "; ".join(action), [], "record", _WITHOUT_REPLY)
    text = spec.text()
    is_made = config is None or config.model.base == "made"
    if not is_made and not isinstance(text, Chat) and isinstance(spec, SupportsWords):
        plain = spec.words()
        if isinstance(plain, Listing):
            return _reconstruct_listed(plain, plain.replies(game, seat), game, seat, action)
    if isinstance(text, Chat) and not is_made:
        prompt = _messages_text(text.messages(game, seat))
    else:
        prompt = " ".join(text.prompt(game, seat))
    if (language := as_grammar_text(text)) is not None:
        return Decision(prompt, language.write_reply(game, seat, action), [], "record", _WITHOUT_CHOICES)
    pieces = text.write(game, seat, action)
    completion = text.completions(game, seat)
    choices = []
    for piece in pieces:
        options = completion.options()
        if len(options) > 1:
            choices.append(_make_choice(piece, sorted(options)))
        if piece not in options:
            break
        completion = options[piece]
    return Decision(prompt, " ".join(pieces), choices, "record", _WITHOUT_PROBABILITIES)


def _reconstruct_listed(words: Words, replies: Sequence[str], game: Game, seat: int, action: Action) -> Decision:
    prompt, reply = _messages_text(build_game_messages(words, game, seat)), write_reply(words, game, seat, action)
    return Decision(prompt, reply, [_make_choice(reply, replies)], "record", _WITHOUT_PROBABILITIES)


_WITHOUT_PROBABILITIES = (
    "Reconstructed from the record under the current configuration. The trajectory with the "
    "probabilities no longer exists: trajectories are dropped once trained on, and evaluation matches have none."
)
_WITHOUT_CHOICES = f"{_WITHOUT_PROBABILITIES} The reply was constrained by a grammar; its choices are not listed."
_WITHOUT_REPLY = (
    "The reply was free text, of which the record keeps only the move. The text was in the trajectory, which no longer "
    "exists, or is with the person or server that answered."
)


def _messages_text(messages: Sequence[Message]) -> str:
    return "\n\n".join(f"[{message.role}]\n{message.content}" for message in messages)


def _make_choice(text: str, options: Sequence[str], logprob: float | None = None) -> Choice:
    return Choice(text, list(options[:_MAX_OPTIONS]), max(len(options) - _MAX_OPTIONS, 0), logprob)


def decision_from_call(step: ModelCall, tokenizer: Tokenizer | None) -> Decision:
    """A decision from the trajectory: prompt and reply, as token numbers without the base model's tokenizer."""

    def text(ids: Sequence[int]) -> str:
        return tokenizer.decode(ids) if tokenizer is not None else " ".join(map(str, ids))

    choices = [
        _make_choice(text([step.completion_ids[index]]), [text([token]) for token in allowed], logprob)
        for index, allowed, logprob in zip(step.branches, step.allowed, step.logprobs, strict=True)
    ]
    note = "" if tokenizer is not None else "The model's tokenizer is not on this machine: tokens are shown as numbers."
    if step.invalid:
        note = f"{note} No legal action was read in the reply; the game's default was played.".strip()
    return Decision(
        prompt=text(step.prompt_ids),
        reply=text(step.completion_ids),
        choices=choices,
        source="rollout",
        note=note,
        version=step.version,
        temperature=step.temperature,
    )


_MAX_LABELS = 50_000
"""Waiting trajectories whose labels are scanned; their contents are not sent."""


async def find_pending_trajectory(
    client: Client, league: str, policy: str, match_id: str, seat: int
) -> Trajectory | None:
    """The waiting trajectory of a seat; None when it is not in the stream (any more), or cannot be decoded.

    LogError where the broker cannot be asked, or rejects it.
    """
    subject, label, seen = experience_subject(league, policy), f"{match_id}:{seat}", 0
    labels = present_messages(client, EXPERIENCE_STREAM, subject, headers_only=True)
    async with contextlib.aclosing(labels) as batches:
        async for messages in batches:
            for sequence in (each.sequence for each in messages if _label(each) == label):
                return await _read_trajectory(client, subject, sequence)
            seen += len(messages)
            if seen >= _MAX_LABELS:
                break
    return None


def _label(pulled: PulledMessage) -> str | None:
    return (pulled.msg.headers or {}).get(LABEL_HEADER)


async def _read_trajectory(client: Client, subject: str, sequence: int) -> Trajectory | None:
    pulled = await message_at(client, EXPERIENCE_STREAM, subject, sequence)
    with contextlib.suppress(DecodeError):
        return decode_trajectory(pulled.msg.data) if pulled is not None else None
    return None


def load_tokenizer(run: Run, model: str) -> Tokenizer | None:
    """The tokenizer of a base model (an artifact's digest, a folder or a known name), if it is on this machine."""
    kind, _, digest = model.partition(":")
    own = [run.folder / "models" / digest[:16], run.model]
    for folder in own if kind == "artifact" else [find_tokenizer(model)]:
        if folder is not None and (folder / "tokenizer.json").is_file():
            with contextlib.suppress(ModelError):
                return Tokenizer(folder)
    return None
