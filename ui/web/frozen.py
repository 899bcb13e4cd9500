"""Answers to the pages' questions, written to files: see ``static/frozen.js``, which reads them."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote

import msgspec

from league.queries.live_league import LiveLeague
from league.queries.matches import share_lines
from league.queries.pages import RequestParams, routes
from league.queries.pages.matches import WholeMatch
from schemas.errors import LeagueError
from ui.web.bundle import STATIC, bundle_scripts

_NAMING = ("agents", "name", "turn", "seat")
"""Parameters that name a thing, as in ``static/frozen.js``; the others are settings of a page."""
_PROMPT_LEFT_OUT = "The prompt is left out: this file holds enough of them."


class FrozenAnswers:
    """Answers of a league as of now, for one file."""

    def __init__(self, league: LiveLeague) -> None:
        self._league = league
        self._answers: dict[str, Any] = {}
        self._problems: dict[str, str] = {}
        self._texts: dict[str, str] = {}

    async def ask(self, path: str, **query: object) -> Any:
        """Freeze the answer of a route, or the reason why there is none; returns the answer or None."""
        params = RequestParams({name: str(value) for name, value in query.items()}, {})
        question = _question(path, query)
        try:
            answer = await _handlers()[f"/api{path}"](self._league, params)
        except LeagueError as error:
            self._problems[question] = str(error)
            return None
        self._answers[question] = answer
        return answer

    def put(self, path: str, answer: Any, **query: object) -> None:
        """Freeze an answer."""
        self._answers[_question(path, query)] = answer

    def put_match(self, match: WholeMatch, max_prompt_chars: int) -> None:
        """Freeze the answers of a match's page. Prompts beyond a total length are left out, replies are not."""
        address = match_address(match.details["match_id"])
        self.put(address, match.details)
        self.put(f"{address}/replay", {"problem": match.problem, **msgspec.to_builtins(match.replay)})
        for number, drawing in enumerate(match.maps):
            self._texts[f"{address}/map/{number}"] = drawing
        left = max_prompt_chars
        for (turn, seat), decision in match.decisions.items():
            left -= len(decision.prompt)
            shown = decision if left >= 0 else msgspec.structs.replace(decision, prompt=_PROMPT_LEFT_OUT)
            self.put(f"{address}/decision", shown, turn=turn, seat=seat)
        if match.decision_problem:
            for turn in range(len(match.replay.turns)):
                for result in match.details["finished"]["seats"]:
                    question = _question(f"{address}/decision", {"turn": turn, "seat": result["seat"]})
                    self._problems[question] = match.decision_problem

    def script(self, manifest: Mapping[str, Any] | None = None) -> str:
        """The script that hands the answers to the pages; a file's first has its manifest."""
        lines, runs = share_lines(list(self._texts.values()))
        texts = dict(zip(self._texts, runs, strict=True))
        entry = {"answers": self._answers, "problems": self._problems, "texts": texts, "lines": lines}
        if manifest is not None:
            entry["manifest"] = manifest
        # ASCII only, and without "<": nothing in it can end the script, or turn the direction of a line.
        plain = msgspec.json.decode(msgspec.json.encode(entry))
        text = json.dumps(plain, separators=(",", ":")).replace("<", "\\u003c")
        return f"(globalThis.FROZEN ??= []).push({text});\n"


def make_manifest(league: LiveLeague, home: str, pages: Mapping[str, str]) -> dict[str, Any]:
    """The manifest of a file: address of its first page, counts of the league, scripts of each page's answers."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"home": home, "counts": league.summary(), "time": now, "pages": pages}


def match_address(match_id: str) -> str:
    """The address of a match's page, not percent-encoded."""
    return f"/match/{match_id}"


def make_match_file(league: LiveLeague, match: WholeMatch, max_prompt_chars: int = 500_000) -> str:
    """A match as one HTML file, which loads nothing."""
    answers, match_id = FrozenAnswers(league), match.details["match_id"]
    answers.put_match(match, max_prompt_chars)
    manifest = make_manifest(league, f"/match/{quote(match_id, safe='')}", {match_address(match_id): ""})
    frozen, styles = answers.script(manifest), _read_static("style.css")
    code = bundle_scripts().replace("</script", "<\\/script")
    policy = _make_policy(_hash_source(styles), f"{_hash_source(frozen)} {_hash_source(code)}")
    elements = f'<style>{styles}</style>\n<script>{frozen}</script>\n<script type="module">{code}</script>'
    return _make_page(policy, elements)


def make_site_page() -> str:
    """The page of a site, which loads the files beside it."""
    elements = (
        '<link rel="stylesheet" href="style.css">\n<script defer src="answers/league.js"></script>\n'
        '<script defer src="league.js"></script>'
    )
    return _make_page(_make_policy("'self'", "'self'"), elements)


def page_policy(page: str) -> str:
    """The content security policy that a page names."""
    match = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    return html.unescape(match[1]) if match else "default-src 'none'"


def site_static_files() -> dict[str, str]:
    """The styles and the script of a site, by name."""
    return {"style.css": _read_static("style.css"), "league.js": bundle_scripts()}


def _make_page(policy: str, elements: str) -> str:
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
        f'<meta name="referrer" content="no-referrer">\n<link rel="icon" href="data:,">\n{elements}\n'
    )
    before, _, rest = _read_static("index.html").partition("<!-- files -->\n")
    return before + head + rest.partition("<!-- /files -->\n")[2]


def _make_policy(styles: str, scripts: str) -> str:
    other = "img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; style-src {styles}; script-src {scripts}; {other}"


def _question(path: str, query: Mapping[str, object]) -> str:
    named = [f"{name}={query[name]}" for name in _NAMING if name in query]
    return f"{path}?{'&'.join(named)}" if named else path


@cache
def _handlers() -> dict[str, Any]:
    return {route.path: route.handler for route in routes()}


@cache
def _read_static(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
