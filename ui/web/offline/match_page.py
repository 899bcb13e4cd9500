"""One match as a page in a file: seats, outcome, and its maps, transcript or conversations with prompts and replies."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from league.queries.decisions import Decision
from league.queries.matches import EpisodeNode
from league.queries.pages.matches import WholeMatch
from schemas.ids import digest
from ui.web.offline.elements import Child, Column, Markup, Table, agent_link, h, join, make_document, render_table

_MAX_PROMPT_CHARS = 500_000
"""Characters of all prompts in one file."""
_SEASONS = {"S": "Spring", "F": "Autumn", "W": "Winter"}
_PHASE_KINDS = {"M": "moves", "R": "retreats", "A": "adjustments"}


def match_file_name(match_id: str) -> str:
    """A file name for a match, whatever its id holds."""
    is_plain = re.fullmatch(r"[A-Za-z0-9_@][A-Za-z0-9_@.-]{0,99}", match_id)
    return f"{match_id if is_plain else f'match-{digest(match_id.encode())[:16]}'}.html"


def render_match(
    match: WholeMatch,
    league: str,
    links: Mapping[str, str] | None = None,
    home: str = "",
    prompt_chars: int = _MAX_PROMPT_CHARS,
) -> str:
    """The page of a match.

    ``links`` are relative addresses of agents' pages by name, ``home`` that of the page about the league. Prompts
    beyond ``prompt_chars`` are left out, replies are not.
    """
    details, match_id = match.details, match.details["match_id"]
    finished = details["finished"]
    links = links or {}
    attributes = {"src": match_file_name(match_id), "title": f"Match {match_id}", "sandbox": "allow-scripts"}
    frame = h("iframe", {**attributes, "loading": "lazy", "width": "100%", "height": 760})
    body = join(
        h("header", None, h("strong", None, h("a", {"href": home}, league) if home else league)),
        h(
            "main",
            None,
            h("h1", None, f"Match {match_id}"),
            _outcome(details),
            # Its script inserts the page's own address and phase.
            h("details", {"class": "embed"}, h("summary", None, "embed"), h("pre", None, str(frame))),
            h("p", {"class": "problem"}, f"No moves to show: {match.problem}")
            if match.problem
            else _played(match, _Prompts(prompt_chars)),
            _seats(finished, links) if finished else None,
            _draw(details, links),
            _consequences(details) if finished else None,
        ),
    )
    return make_document(f"Match {match_id} · {league}", body, match.maps.styles if match.maps else "")


def _outcome(details: Mapping[str, Any]) -> Markup:
    finished, failed, voided = details["finished"], details["failed"], details["voided"]
    if failed and not finished:
        place = f"event {failed['sequence']:,}, {failed['time']}"
        return h("p", {"class": "problem"}, f"Failed at {failed['worker']} ({place}): {failed['error']}")
    if not finished:
        return h("p", None, "Drawn, and neither finished nor failed yet.")
    first = next((seat for seat in finished["seats"] if seat["seat"] == finished["winner"]), None)
    won = f"Won by {first['role']} {first['agent']}." if first else "No winner."
    voiding = voided and f"Voided by event {voided['sequence']:,} ({voided['time']}): {voided['reason']}"
    return join(
        h(
            "p",
            None,
            f"{finished['environment'] or finished['game']}, {finished['purpose']}, played by {finished['worker']} "
            f"in {finished['seconds']:.3g} s: {finished['length']:,} turns, {finished['tokens']:,} tokens "
            f"written, ended by {finished['reason'].replace('_', ' ')}. {won}",
        ),
        h("p", {"class": "soft"}, f"Event {finished['sequence']:,}, {finished['time']}, seed {finished['seed']}"),
        h("p", {"class": "problem"}, voiding) if voiding else None,
    )


def _seats(finished: Mapping[str, Any], links: Mapping[str, str]) -> Markup:
    def seated(seat: Mapping[str, Any]) -> Markup:
        return join(agent_link(seat["agent"], links), " (trained on)" if seat["trainable"] else None)

    columns = (
        Column("seat", lambda seat: seat["role"] or f"seat {seat['seat']}"),
        Column("agent", lambda seat: seat["agent"], seated),
        Column("score", lambda seat: f"{seat['score']:.2f}", is_number=True),
        Column("rank", lambda seat: seat["rank"], is_number=True),
        Column("metrics", lambda seat: ", ".join(f"{name} {value:g}" for name, value in seat["metrics"].items())),
    )
    return render_table(Table("Seats", columns, finished["seats"]))


def _draw(details: Mapping[str, Any], links: Mapping[str, str]) -> Markup | None:
    sampled = details["sampled"]
    if sampled is None:
        return None
    picks = (
        h("li", None, f"seat {pick['seat']}: ", agent_link(pick["agent"], links), f" from {pick['bucket']}")
        for pick in sampled["picks"]
    )
    about = (
        f"{sampled['hero']} in seat {sampled['hero_seat']}; opponents drawn by {sampled['sampler']}, draw "
        f"{sampled['draw']}, from the standings at event {sampled['standings_sequence']:,}."
    )
    return _folded("How it came about", h("p", None, about), h("ul", None, picks))


def _consequences(details: Mapping[str, Any]) -> Markup | None:
    changes = [
        f"{change['system']}: {change['agent']} {change['after'] - change['before']:+.1f} to {change['after']:.1f}"
        for change in details["ratings"]
    ]
    for use in details["used"]:
        verb = "trained on in" if use["dropped"] is None else f"left out ({use['dropped']}) by"
        changes.append(f"{verb} step {use['step']:,} of {use['policy']}")
    items = [h("li", None, text) for text in changes]
    return _folded("What it changed", h("ul", None, items)) if items else None


def _folded(title: str, *children: Child) -> Markup:
    return h("details", None, h("summary", None, title), *children)


def _played(match: WholeMatch, prompts: "_Prompts") -> Markup:
    if match.replay.episodes:
        return join(*(_episode(episode, prompts) for episode in match.replay.episodes))
    shapes = None
    if match.maps is not None:
        hidden = {"width": 0, "height": 0, "aria-hidden": "true", "class": "hidden"}
        shapes = h("svg", hidden, Markup(match.maps.shared))
    if match.decision_problem:
        shapes = join(shapes, h("p", {"class": "problem"}, f"No prompts and replies: {match.decision_problem}"))
    return join(shapes, h("div", {"class": "phases"}, _phases(match, prompts)))


def _phases(match: WholeMatch, prompts: "_Prompts") -> Iterator[Markup]:
    turns, pictures = match.replay.turns, match.replay.pictures
    for number in range(max(len(turns), len(pictures))):
        turn = turns[number] if number < len(turns) else None
        title = turn.title if turn else "The end"
        # A phase of Diplomacy in words, ``Spring 1901, moves`` for ``S1901M``.
        if phase := re.fullmatch(r"([SFW])(\d{4})([MRA])", title):
            title = f"{_SEASONS[phase[1]]} {phase[2]}, {_PHASE_KINDS[phase[3]]}"
        shown = None
        if match.maps is not None:
            label = f"Map of {pictures[number].words}"
            attributes = {"class": f"battlefield phase-{number}", "viewBox": match.maps.view_box, "role": "img"}
            drawn = Markup(match.maps.phases[number])
            land, labels = h("use", {"href": "#land"}), h("use", {"href": "#labels"})
            shown = h("svg", {**attributes, "aria-label": label}, land, drawn, labels)
        moves = [
            _moves(match, number, place, role, lines, prompts)
            for place, (role, lines) in enumerate(turn.moves.items() if turn else ())
        ]
        notes = (h("pre", None, note) for note in (turn.notes if turn else ()))
        yield h(
            "section",
            {"class": "phase", "id": f"phase-{number}"},
            h("h3", None, title),
            shown,
            h("div", {"class": "cards"}, moves),
            notes,
        )


def _moves(match: WholeMatch, number: int, place: int, role: str, lines: list[str], prompts: "_Prompts") -> Markup:
    seats = match.details["finished"]["seats"]
    seat = next((seat for seat in seats if seat["role"] == role), seats[place] if place < len(seats) else None)
    decision = match.decisions.get((number, seat["seat"])) if seat else None
    return h(
        "div",
        {"class": "card"},
        h("h4", None, role, h("span", {"class": "soft"}, f" {seat['agent']}") if seat else None),
        h("ul", {"class": "moves"}, (h("li", None, line) for line in lines)),
        _decision(decision, prompts) if decision else None,
    )


class _Prompts:
    """The prompts of a file, up to a total length."""

    def __init__(self, chars: int) -> None:
        self._left = chars

    def render(self, text: str) -> Markup:
        """A prompt, or a line in its place once the file holds enough of them."""
        self._left -= len(text)
        if self._left < 0:
            return h("p", {"class": "soft"}, "The prompt is left out: this file holds enough of them.")
        return h("pre", None, text)


def _decision(decision: Decision, prompts: _Prompts) -> Markup:
    is_sampled = decision.source == "rollout"
    sampled = f"As sampled by version {decision.version} at temperature {decision.temperature}. " if is_sampled else ""
    about = f"{sampled}{decision.note}".strip()
    return _folded(
        "prompt and reply",
        h("p", {"class": "soft"}, about) if about else None,
        h("h5", None, "Prompt"),
        prompts.render(decision.prompt),
        h("h5", None, "Reply"),
        h("pre", None, decision.reply),
    )


def _episode(episode: EpisodeNode, prompts: _Prompts) -> Markup:
    earned = [f"{role} earns {reward:g}" for role, reward in episode.rewards.items()]
    earned += [f"{name} {value:g}" for name, value in episode.metrics.items()]
    calls = (
        h(
            "div",
            {"class": "card"},
            h("h4", None, call.role),
            h("pre", None, call.said),
            _folded("prompt", ((h("h5", None, m["role"]), prompts.render(m["content"])) for m in call.prompt)),
        )
        for call in episode.calls
    )
    return h(
        "section",
        {"class": f"episode depth-{min(episode.depth, 6)}"},
        h("h3", None, f"{episode.id}: {episode.episode_type}{'' if episode.trainable else ', not trained on'}"),
        h("pre", None, episode.about) if episode.about else None,
        *calls,
        h("p", {"class": "problem"}, f"Failed: {episode.failure}") if episode.failure else None,
        h("p", {"class": "soft"}, ", ".join(earned)),
    )
