"""Matches against agents in a terminal or from a script: questions are printed, answers are lines."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from league.integrity.snapshots import load_state_at
from league.log.jetstream import JetStreamLog
from league.queries.playable import match_options
from league.run import Run
from schemas.errors import UsageError, escape_unprintable, format_choices
from ui.play.human_match import HumanMatch, HumanMatchLobby, HumanMatchView
from workers.runtime import beside

Printer = Callable[[str], None]
LineReader = Callable[[str], Awaitable[str | None]]
"""Reads the line that answers a prompt; None at the end of the input."""

_VIEW_TIMEOUT_S = 20.0


async def play_in_terminal(
    run: Run, history: JetStreamLog, seat: str | None, agents: Sequence[str], show: Printer, ask: LineReader
) -> bool:
    """Play one match; return whether it produced a result.

    ``seat`` is the person's, by name or number, by default the first; ``agents`` are those of the other seats in order,
    or one for all of them.
    """
    state = await load_state_at(history, run.open_blob_store(history.client))
    lobby = HumanMatchLobby(run, history, state, "play", away_s=None)

    async def fold_history() -> None:
        async for recorded in history.follow(state.sequence + 1):
            state.apply(recorded.sequence, recorded.event)
            lobby.wake()

    try:
        async with beside(fold_history()):
            own_seat, seated = _resolve_seats(match_options(state), seat, agents)
            _, match = lobby.start_match(own_seat, seated)
            return await _play_match(
                match,
                lambda text: show(escape_unprintable(text, lines=True)),
                lambda text: ask(escape_unprintable(text, lines=True)),
            )
    finally:
        await lobby.close()


def _resolve_seats(offer: dict[str, Any], seat: str | None, agents: Sequence[str]) -> tuple[int, list[str]]:
    if offer["why_not"]:
        raise UsageError(offer["why_not"])
    names: list[str] = offer["seats"]
    numbered = {str(number): number for number in range(len(names))} | {name: n for n, name in enumerate(names)}
    seat_number = 0 if seat is None else numbered.get(seat)
    if seat_number is None:
        raise UsageError(f"--seat {seat!r}: expected {format_choices(names)}, or its number from 0")
    free = len(names) - 1
    others = [*agents] * free if len(agents) == 1 else [*agents]
    if len(others) != free:
        raise UsageError(f"--agents: found {len(others)}; expected one, or one for each of {free} other seats")
    return seat_number, [*others[:seat_number], "", *others[seat_number:]]


async def _play_match(match: HumanMatch, show: Printer, ask: LineReader) -> bool:
    view = await match.wait_for_view(-1, _VIEW_TIMEOUT_S)
    show(f"{view.rules}\n\n" + ", ".join(f"{seat['role']}: {seat['agent']}" for seat in view.seats))
    shown = 0
    while True:
        for turn in view.moves[shown:]:
            moves = "; ".join(f"{role}: {', '.join(actions)}" for role, actions in turn.moves.items())
            show("\n".join([f"{turn.title}  {moves}", *turn.notes]))
        shown = max(shown, len(view.moves))
        if view.over:
            return _show_result(view, show)
        if view.question is not None:
            await _ask_until_legal(match, view.question, show, ask)
        view = await match.wait_for_view(view.changes, _VIEW_TIMEOUT_S)


def _show_result(view: HumanMatchView, show: Printer) -> bool:
    if view.outcome is not None:
        scores = zip(view.seats, view.outcome["scores"], view.outcome["ranks"], strict=True)
        show("\n".join(f"{rank}. {seat['role']} {seat['agent']}: {score:g}" for seat, score, rank in scores))
    if view.problem:
        show(view.problem)
    if view.recorded:
        show(f"recorded: league match show {view.match_id}")
    return view.outcome is not None


async def _ask_until_legal(match: HumanMatch, question: dict[str, Any], show: Printer, ask: LineReader) -> None:
    show(f"\n{question['text']}")
    while match.person.question is not None and match.person.question.number == question["number"]:
        reply = await _read_reply(question["choices"], show, ask)
        if reply is None:
            match.person.leave("the person left")
            return
        try:
            match.person.answer(question["number"], reply)
            return
        except UsageError as error:
            show(str(error))


async def _read_reply(choices: list[dict[str, Any]], show: Printer, ask: LineReader) -> str | None:
    """Read a line per choice: its number, its label or its text; free text where there are no choices."""
    if not choices:
        return await ask("> ")
    chosen = []
    for choice in choices:
        options, labels, usual = choice["options"], choice["labels"], choice["usual"]
        show("  ".join(f"{number}) {label}" for number, label in enumerate(labels, 1)))
        line = await ask(f"{choice['name']} [{labels[usual]}]> " if choice["name"] else "> ")
        if line is None:
            return None
        line = line.strip()
        if not line and choice["name"]:
            option = options[usual]
        elif line.isascii() and line.isdigit() and 1 <= int(line) <= len(options):
            option = options[int(line) - 1]
        elif line in labels:
            option = options[labels.index(line)]
        else:
            # An order without its unit, in the engine's notation.
            option = next((each for each in options if line and each.split(" ", 2)[2:] == [line]), line)
        chosen.append(str(option))
    return "\n".join(chosen)
