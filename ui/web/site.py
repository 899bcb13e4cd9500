"""A league as static files: the pages of ``league web`` with their answers beside them."""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from league.queries.live_league import LiveLeague
from league.queries.match_list import PageQuery, read_page
from league.queries.pages.matches import load_whole_match
from schemas.errors import UsageError
from ui.web.frozen import FrozenAnswers, make_manifest, make_site_page, match_address, site_static_files

ANSWERS_FOLDER = "answers"
_LIST = "site.json"
_OWN_PATH = re.compile(rf"index\.html|style\.css|league\.js|{ANSWERS_FOLDER}/(?:league|agent-\d+|match-\d+)\.js")
_PROMPT_CHARS = 150_000
"""Characters of a match's prompts: fewer than in a file of its own, since there are many."""
_MAX_AGENTS = 200
_CHART_AGENTS = 6
"""Agents that the page of ratings begins with, as in ``static/pages/ratings.js``."""
_MAX_CURVES = 24
_PAGES = ("/", "/ratings", "/payoff", "/matches", "/training", "/matchmaking", "/lineage", "/problems", "/criteria")
_QUESTIONS = (
    *("/learning", "/systems", "/leaderboard", "/payoff", "/matches/options", "/training", "/training/ledger"),
    *("/matchmaking", "/matchmaking/audit", "/lineage", "/problems", "/criteria"),
)
# Half of the pages at most are of benchmarks: the newest match of each, the newest benchmark first.
_CHOSEN_MATCHES = """
    WITH benchmarks AS (
        SELECT max(m.sequence) AS sequence FROM matches m JOIN evaluations e USING (evaluation_id)
        WHERE e.suite = 'benchmark' GROUP BY evaluation_id ORDER BY sequence DESC LIMIT (? // 2)
    ), ranked AS (
        FROM benchmarks UNION ALL SELECT sequence FROM matches
        WHERE sequence NOT IN (FROM benchmarks) ORDER BY sequence DESC LIMIT ?
    )
    SELECT sequence FROM ranked ORDER BY sequence DESC
"""


class SiteFile(NamedTuple):
    """A file of the site."""

    path: str
    """Relative to the site's folder, with slashes."""
    content: bytes


class _SiteList(msgspec.Struct, frozen=True):
    """``site.json``: the files of the site."""

    league_site: int
    """Version of this form."""
    files: list[str]


class SiteFolder:
    """A folder for a site: empty, not there yet, or with an earlier site; ``UsageError`` for any other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            is_new = not path.exists() or (path.is_dir() and not any(path.iterdir()))
            listed = None if is_new else msgspec.json.decode((path / _LIST).read_bytes(), type=_SiteList)
        except (OSError, msgspec.DecodeError):
            raise UsageError(
                f"--to {path}: is not empty and holds no {_LIST} of an earlier site; expected a folder that is empty, "
                "not there yet, or of an earlier `league web --to`"
            ) from None
        self._old = [] if listed is None else listed.files

    async def write(self, files: AsyncIterator[SiteFile]) -> tuple[int, int]:
        """Write the files and remove the earlier site's others; returns number and bytes."""
        written, size = [], 0
        try:
            (self.path / ANSWERS_FOLDER).mkdir(parents=True, exist_ok=True)
            # Before the files: a site that is interrupted can be written again.
            self._write_list(self._old)
            async for file in files:
                (self.path / file.path).write_bytes(file.content)
                written.append(file.path)
                size += len(file.content)
            for name in set(self._old) - set(written):
                if _OWN_PATH.fullmatch(name):
                    (self.path / name).unlink(missing_ok=True)
            self._write_list(written)
        except OSError as error:
            raise UsageError(
                f"--to {self.path}: cannot be written: {error.strerror} ({error.filename}); expected a writable folder"
            ) from error
        return len(written), size

    def _write_list(self, files: list[str]) -> None:
        (self.path / _LIST).write_bytes(msgspec.json.format(msgspec.json.encode(_SiteList(1, sorted(files)))))


async def make_site(
    league: LiveLeague, matches: int, report: Callable[[str, float], None] = lambda stage, share: None
) -> AsyncIterator[SiteFile]:
    """The files of a league's site, with the pages of so many ``matches``: the newest, and benchmarks'."""
    report("reading the league", 0.0)
    for name, content in {"index.html": make_site_page(), **site_static_files()}.items():
        yield SiteFile(name, content.encode())
    chosen, upto = PageQuery(_CHOSEN_MATCHES, [matches, matches]), league.position
    rows = await league.read(lambda connection: read_page(connection, chosen, upto)) if matches else []
    answers = FrozenAnswers(league)
    agents = await _ask_pages(answers, rows)
    pages = dict.fromkeys(_PAGES, "")
    for number, agent in enumerate(agents):
        report("writing agents", number / len(agents))
        path = pages[f"/agent/{agent}"] = f"{ANSWERS_FOLDER}/agent-{number}.js"
        yield SiteFile(path, (await _ask_agent(league, agent)).script().encode())
    for number, row in enumerate(rows):
        report("writing matches", number / len(rows))
        path = pages[match_address(row["match_id"])] = f"{ANSWERS_FOLDER}/match-{number}.js"
        match = FrozenAnswers(league)
        match.put_match(await load_whole_match(league, row["match_id"]), _PROMPT_CHARS)
        yield SiteFile(path, match.script().encode())
    yield SiteFile(f"{ANSWERS_FOLDER}/league.js", answers.script(make_manifest(league, "/", pages)).encode())


async def _ask_pages(answers: FrozenAnswers, matches: Sequence[dict[str, Any]]) -> list[str]:
    """Ask what all pages except agents' and matches' ask; returns the agents, the best first."""
    found = {question: await answers.ask(question) for question in _QUESTIONS}
    await answers.ask("/events", limit=200)
    answers.put("/matches", {"rows": matches, "next": None})
    training = found["/training"]
    if training["policies"]:
        policies = ",".join(row["policy"] for row in training["policies"])
        await answers.ask("/training/curves", policy=policies, names=",".join(training["names"][:_MAX_CURVES]))
    board = (found["/leaderboard"] or {"rows": []})["rows"]
    rated = [row["agent"] for row in board if row["rating"] is not None]
    if rated:
        await answers.ask("/ratings", agents=_join_names(rated[:_CHART_AGENTS]))
    return [row["agent"] for row in board[:_MAX_AGENTS]]


async def _ask_agent(league: LiveLeague, agent: str) -> FrozenAnswers:
    answers = FrozenAnswers(league)
    await answers.ask("/agent", name=agent)
    await answers.ask("/agent/opponents", name=agent)
    await answers.ask("/agent/matches", name=agent, limit=20)
    await answers.ask("/agent/steps", name=agent)
    await answers.ask("/ratings", agents=_join_names([agent]))
    return answers


def _join_names(names: Sequence[str]) -> str:
    """Several names as one parameter, as ``joined`` in ``static/choices.js`` writes them."""
    return ",".join(name.replace("%", "%25").replace(",", "%2C") for name in names)
