"""Rules that every game keeps, whatever it is about: ``RULES`` of the game, ``TEXT_RULES`` of how models are asked.

A rule takes a game's spec, plays by fixed seeds, and raises at the first violation with what was found. The contract
tests run all of them on every registered game, and ``league game check`` on one of your own.
"""

from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import msgspec

from arena.games.base import Action, Game, GameSpec, Phrases, Pieces, TextFormat, position_checksum
from schemas.errors import DecodeError, GameError, LeagueError
from schemas.ids import derive_seed
from schemas.plugins import locate_error

Rule = Callable[[GameSpec], None]

MAX_TURNS = 500
"""Turns after which random play has to be over."""


class Finding(msgspec.Struct, frozen=True):
    """The result of one rule."""

    rule: str
    found: str
    """What violates it; empty if nothing does."""


def check_contract(spec: GameSpec) -> Iterator[Finding]:
    """Check a game by every rule, in their order."""
    for rule in (*RULES, *TEXT_RULES):
        name = (rule.__doc__ or "").partition("\n")[0].rstrip(".")
        try:
            rule(spec)
        except Exception as error:  # Whatever the game raises is a finding, and the other rules go on.
            yield Finding(name, str(error) if isinstance(error, LeagueError) else locate_error(error))
        else:
            yield Finding(name, "")


def random_actions(game: Game, rng: Random) -> dict[int, Action]:
    """Random actions of the seats to move."""
    return {seat: game.random_action(seat, rng) for seat in game.to_move()}


def random_play(game: Game, rng: Random) -> Iterator[Game]:
    """The game before each turn of random play."""
    for _ in range(MAX_TURNS):
        if not game.to_move():
            return
        yield game
        game.apply(random_actions(game, rng))
    raise GameError(f"{game.name}: random play goes on after {MAX_TURNS} turns; expected an end")


def finished(spec: GameSpec, seed: int) -> Game:
    """A game that was played at random."""
    game = spec.new(seed)
    for _ in random_play(game, Random(seed)):
        pass
    return game


def random_walk(place: Phrases, rng: Random) -> Pieces:
    """A random completion."""
    pieces: list[str] = []
    while options := place.options():
        piece = rng.choice(sorted(options))
        pieces.append(piece)
        place = options[piece]
    return tuple(pieces)


def _expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise GameError(f"{what}: {_short(found)}; expected {_short(expected)}")


def _require(holds: object, what: str) -> None:
    if not holds:
        raise GameError(what)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _refuse(what: str, call: Callable[[], object], words: str = "", kind: type[LeagueError] = GameError) -> None:
    """Check that a call raises an error of this kind with these words."""
    try:
        call()
    except kind as error:
        _require(words in str(error), f"{what}: rejected with {str(error)!r}; expected {words!r} in the message")
    else:
        raise GameError(f"{what}: accepted; expected {kind.__name__}")


def random_play_is_legal_and_ends(spec: GameSpec) -> None:
    """Random play is legal and ends with an outcome for every seat."""
    for seed in range(3):
        game, rng = spec.new(seed), Random(seed)
        clock = game.clock
        for now in random_play(game, rng):
            moving = list(now.to_move())
            _expect("to_move", moving, sorted(set(moving)))
            _require(now.clock >= clock, f"clock: {now.clock} after {clock}; expected that it never falls")
            clock = now.clock
            _refuse("outcome before the end", now.outcome, "not over")
            for seat in moving:
                action = now.random_action(seat, rng)
                _expect(f"random_action of seat {seat}", list(action), sorted(action))
                _require(now.is_legal(seat, action), f"random_action of seat {seat}: {action} is not legal")
        _check_end(spec, game)


def _check_end(spec: GameSpec, game: Game) -> None:
    outcome, seats = game.outcome(), len(spec.seats)
    for name in ("scores", "ranks", "metrics"):
        _expect(f"number of {name} in the outcome", len(getattr(outcome, name)), seats)
    ranks = [1 + sum(other > score for other in outcome.scores) for score in outcome.scores]
    _expect(f"ranks of the scores {outcome.scores}", list(outcome.ranks), ranks)
    is_seat = outcome.winner is None or 0 <= outcome.winner < seats
    _require(is_seat, f"winner: {outcome.winner}; expected None or a seat below {seats}")
    _require(outcome.length > 0, f"length of the outcome: {outcome.length}; expected the number of turns")
    _require(outcome.reason, "reason of the outcome: empty; expected why the game ended")
    _expect("seats of the game", list(game.seats), list(spec.seats))
    for seat in range(seats):
        progress = game.progress(seat)
        _require(isinstance(progress, float), f"progress of seat {seat}: {progress!r}; expected a float")


def equal_seeds_give_equal_games(spec: GameSpec) -> None:
    """Equal seeds and actions give equal bytes."""
    one, other = finished(spec, 3), finished(spec, 3)
    _expect("save() of a second game of the same seed", other.save(), one.save())
    _expect("record() of a second game of the same seed", other.record(), one.record())


def bad_actions_are_refused(spec: GameSpec) -> None:
    """Bad actions are rejected and change nothing."""
    game, rng = spec.new(1), Random(1)
    for now in random_play(game, rng):
        good = random_actions(now, rng)
        seat = min(good)
        idle = [other for other in range(len(spec.seats)) if other not in good]
        before = now.save(), now.record()
        bad_sets = [
            {other: action for other, action in good.items() if other != seat},
            {**good, seat: ("nonsense",)},
            {**good, seat: ()},
            {**good, seat: (*good[seat], good[seat][-1])},
            {**good, len(spec.seats): good[seat]},
            *({**good, other: good[seat]} for other in idle),
        ]
        for bad in bad_sets:
            _refuse(f"apply({bad})", partial(now.apply, bad), f"{spec.name}, ")
        _require(not now.is_legal(seat, ("nonsense",)), "is_legal: true for ('nonsense',)")
        for other in idle:
            _require(not now.is_legal(other, good[seat]), f"is_legal: true for seat {other}, which is not to move")
        _expect("save() and record() after rejected actions", (now.save(), now.record()), before)


def loaded_positions_continue(spec: GameSpec) -> None:
    """A loaded or replayed position continues as the saved one."""
    game, rng = spec.new(4), Random(4)
    for now in random_play(game, rng):
        loaded, after, ahead = spec.load(now.save()), spec.load(now.save()), spec.replay(now.record())
        _expect("save() of a loaded position", loaded.save(), now.save())
        _expect("to_move() of a loaded position", list(loaded.to_move()), list(now.to_move()))
        twin_seed = rng.random()
        actions = random_actions(now, Random(twin_seed))
        _expect("random actions of a loaded position", random_actions(loaded, Random(twin_seed)), actions)
        for each in (loaded, after, ahead):
            each.apply(actions)
        _expect("save() of two loaded positions after a turn", after.save(), loaded.save())
        _expect("save() of a replayed position after a turn", ahead.save(), loaded.save())
        _expect("save() of a replay of a loaded game", spec.replay(loaded.record()).save(), loaded.save())
    half_way = spec.load(spec.new(4).save())
    for _ in random_play(half_way, Random(8)):
        pass
    _expect("record() of a replayed record", spec.replay(half_way.record()).record(), half_way.record())
    _expect("outcome of a loaded game", spec.load(game.save()).outcome(), game.outcome())


def replays_give_equal_bytes(spec: GameSpec) -> None:
    """A replayed record gives the same bytes, in sorted JSON."""
    game = finished(spec, 6)
    again = spec.replay(game.record())
    _expect("save() of a replay", again.save(), game.save())
    _expect("record() of a replay", again.record(), game.record())
    _expect("outcome of a replay", again.outcome(), game.outcome())
    for name, data in (("save", game.save()), ("record", game.record())):
        _expect(f"{name}(), decoded and encoded", msgspec.json.encode(msgspec.json.decode(data), order="sorted"), data)


def records_open_into_turns(spec: GameSpec) -> None:
    """A record opens into turns, with a check of each position."""
    recording = spec.open_record(finished(spec, 6).record())
    _expect("seed of the record", recording.seed, 6)
    _require(recording.turns, "turns of the record: none; expected every turn")
    _expect("number of checks in the record", len(recording.checks), len(recording.turns))
    game = recording.start
    for number, (actions, check) in enumerate(zip(recording.turns, recording.checks, strict=True), start=1):
        _expect(f"seats of turn {number} in the record", sorted(actions), list(game.to_move()))
        game.apply(actions)
        _expect(f"check after turn {number}", position_checksum(game.save()), check)
    _expect("to_move() after the last turn of the record", list(game.to_move()), [])


def transcripts_name_every_turn(spec: GameSpec) -> None:
    """A transcript names every turn and whoever moved."""
    record = finished(spec, 6).record()
    recording, turns = spec.open_record(record), spec.transcript(record)
    _expect("number of turns in the transcript", len(turns), len(recording.turns))
    _expect("number of different titles", len({turn.title for turn in turns}), len(turns))
    for turn, actions in zip(turns, recording.turns, strict=True):
        _expect(f"seats of {turn.title}", list(turn.moves), [recording.start.seats[seat] for seat in sorted(actions)])
        _require(all(line for lines in turn.moves.values() for line in lines), f"{turn.title}: a move is empty")


def broken_bytes_are_refused(spec: GameSpec) -> None:
    """Broken bytes are rejected."""
    readers: tuple[Callable[[bytes], object], ...] = (spec.load, spec.replay, spec.transcript)
    for read in readers:
        # A position whose fields all have defaults may be empty; a record may not.
        for broken in (b"", b"[1]", b'{"phase":', *(() if read == spec.load else (b"{}",))):
            _refuse(f"reading {broken!r}", partial(read, broken), spec.name, DecodeError)


def every_bot_plays_legally(spec: GameSpec) -> None:
    """Every bot plays legally, repeats by its seed and leaves the game as it was."""
    _require("random_bot" in spec.bots, f"bots: {list(spec.bots)}; expected 'random_bot' among them")
    for name in spec.bots:
        bot, game = spec.bot(name), spec.new(9)
        turn = 0
        while moving := game.to_move():
            seeds = {seat: derive_seed(9, name, turn, seat) for seat in moving}
            before = game.save()
            actions = {seat: bot.act(game, seat, Random(seeds[seat])) for seat in moving}
            again = {seat: bot.act(game, seat, Random(seeds[seat])) for seat in reversed(moving)}
            _expect(f"{name}, asked again with the same seeds", again, actions)
            _expect(f"save() after {name} was asked", game.save(), before)
            game.apply(actions)
            turn += 1
    _refuse("bot('nobody')", lambda: spec.bot("nobody"), "random_bot")


def idle_seats_are_asked_nothing(spec: GameSpec) -> None:
    """Seats that are not to move are asked for nothing."""
    game, text = finished(spec, 2), spec.text()
    _refuse("random_action after the end", lambda: game.random_action(0, Random(0)), "not to move")
    _refuse("prompt after the end", lambda: text.prompt(game, 0), "not to move")
    _refuse("completions after the end", lambda: text.completions(game, 0))
    _refuse("apply after the end", lambda: game.apply({0: ("nonsense",)}))


def text_says_every_action(spec: GameSpec) -> None:
    """Text says every action, and only legal ones."""
    text = spec.text()
    vocabulary = set(text.vocabulary())
    _expect("vocabulary", list(text.vocabulary()), sorted(vocabulary))
    for seed in range(2):
        game, rng = spec.new(seed), Random(derive_seed(seed, "text"))
        for now in random_play(game, rng):
            for seat in now.to_move():
                _check_text(text, vocabulary, now, seat, rng)


def _check_text(text: TextFormat, vocabulary: set[str], game: Game, seat: int, rng: Random) -> None:
    completion = random_walk(text.completions(game, seat), rng)
    for what, pieces in (("prompt", text.prompt(game, seat)), ("completion", completion)):
        _expect(f"pieces of a {what} beside the vocabulary", set(pieces) - vocabulary, set())
    said = text.read(game, seat, completion)
    _require(game.is_legal(seat, said), f"completion {completion}: read as {said}, which is not legal")
    _expect(f"completion for {said}", text.write(game, seat, said), completion)
    action = game.random_action(seat, rng)
    _expect("an action, written and read", text.read(game, seat, text.write(game, seat, action)), action)


def text_refuses_what_it_cannot_say(spec: GameSpec) -> None:
    """Text rejects what it cannot say."""
    game, text = spec.new(7), spec.text()
    seat = game.to_move()[0]
    completion = random_walk(text.completions(game, seat), Random(7))
    for bad in ((), completion[:-1], ("nonsense",), (*completion, completion[0])):
        _refuse(f"read({bad})", partial(text.read, game, seat, bad))
    _refuse("write(('nonsense',))", lambda: text.write(game, seat, ("nonsense",)))


def walking_is_repeatable(spec: GameSpec) -> None:
    """Completions are the same at every walk."""
    game, text = spec.new(8), spec.text()
    for now in random_play(game, Random(8)):
        seat = now.to_move()[0]
        place = text.completions(now, seat)
        first = random_walk(place, Random(1))
        _expect("a second walk by the same seed", random_walk(place, Random(1)), first)
        _expect("a walk from new completions", random_walk(text.completions(now, seat), Random(1)), first)


RULES: tuple[Rule, ...] = (
    random_play_is_legal_and_ends,
    equal_seeds_give_equal_games,
    bad_actions_are_refused,
    loaded_positions_continue,
    replays_give_equal_bytes,
    records_open_into_turns,
    transcripts_name_every_turn,
    broken_bytes_are_refused,
    every_bot_plays_legally,
)
TEXT_RULES: tuple[Rule, ...] = (
    idle_seats_are_asked_nothing,
    text_says_every_action,
    text_refuses_what_it_cannot_say,
    walking_is_repeatable,
)
"""Rules that a game keeps in each of the ways that models can be asked about it."""
