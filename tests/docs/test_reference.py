"""The reference pages say all that the code knows: every event, key, plugin and option, with what it means."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from docs_site import commands, events, glossary, markdown, settings, structs
from schemas.config import LeagueConfig
from schemas.events import EVENT_TYPES, GradientStepTaken, MatchFinished

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def events_page() -> str:
    return events.render_page()


@pytest.fixture(scope="module")
def commands_page() -> str:
    return commands.render_page()


def test_every_event_has_a_section_with_all_its_fields(events_page: str) -> None:
    for name, kind in EVENT_TYPES.items():
        section = events_page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert "**Subject**" in section, name
        for field in msgspec.structs.fields(kind):
            assert f"| <code>{field.encode_name}</code> |" in section, (name, field.name)


def test_an_event_is_told_with_subject_key_writers_types_defaults_meaning_and_an_example(events_page: str) -> None:
    section = events_page.partition("\n## MatchFinished\n")[2].partition("\n## ")[0]
    assert "<code>league.&lt;league&gt;.match.&lt;purpose&gt;.finished.&lt;worker&gt;</code>" in section
    assert "**key** One end per match." in section
    assert "**written by** rollout, evaluator" in section
    assert "| <code>seats</code> | list of [`SeatResult`](#seatresult) | required | Result of one seat. |" in section
    assert "| <code>rules</code> | whole number from 0 | <code>1</code> | Version of the game's rules" in section
    assert '"type": "MatchFinished"' in section


def test_every_field_of_an_event_has_a_meaning() -> None:
    check_meanings([*EVENT_TYPES.values(), *events.nested_event_structs()], glossary.EVENT_FIELDS)


def test_every_setting_has_a_meaning() -> None:
    kinds = [
        LeagueConfig,
        *settings.collect_tables("", LeagueConfig).values(),
        *settings.plugin_structs(),
        *settings.nested_tables().values(),
    ]
    check_meanings(kinds, glossary.SETTINGS)


def check_meanings(kinds: Sequence[type], words: Mapping[str, str]) -> None:
    """Every field is explained, and no word of the glossary is left over."""
    fields = [(kind, field) for kind in kinds for field in structs.struct_fields(kind)]
    unsaid = [
        f"{kind.__name__}.{field.name}" for kind, field in fields if not structs.field_meaning(kind, field, words)
    ]
    assert unsaid == [], "a docstring under each says it; or docs_site/glossary.py"
    names = {name for kind, field in fields for name in (field.name, f"{kind.__name__}.{field.name}")}
    assert set(words) <= names


def test_structs_within_events_have_sections_of_their_own(events_page: str) -> None:
    linked = set(re.findall(r"\]\(#(\w+)\)", events_page))
    headed = {heading.lower() for heading in re.findall(r"^#{2,3} (\w+)$", events_page, re.MULTILINE)}
    assert linked <= headed
    assert {"buffercontents", "opengroup", "droppedtrajectories"} <= linked, "two levels below GradientStepTaken"


def test_a_field_is_explained_by_what_stands_under_it_or_by_its_struct() -> None:
    assert structs.field_docs(MatchFinished)["tokens"] == "Tokens that models wrote, forced ones included."
    assert "match_id" not in structs.field_docs(MatchFinished)
    table = structs.field_table(GradientStepTaken, lambda struct: struct.__name__)
    assert "| list of DroppedTrajectories | <code>&#91;&#93;</code> | The others that left, by reason. |" in table
    assert "| whole number or none | none | All of the policy's rollouts" in table


def test_every_command_and_option_is_there_with_its_group(commands_page: str) -> None:
    for path in ("up", "config init", "match explain", "dead-letters retry", "auth revoke", "web"):
        assert re.search(rf"^#+ `league {path}` {{ #{path.replace(' ', '-')} }}$", commands_page, re.MULTILINE), path
    up = commands_page.partition("### `league up`")[2].partition("\n### ")[0]
    assert "league up [OPTIONS]" in up
    assert "| <code>--port</code> | <code>0</code> | Port of the run's own broker; 0 takes a free one. |" in up
    assert "Also <code>--run</code>, <code>--nats</code>" in up
    panels = re.findall(r"^## (.*)$", commands_page, re.MULTILINE)
    assert panels[:3] == ["Options that many commands share", "Begin", "Watch and play"]


def test_every_variable_that_the_code_looks_at_is_told(commands_page: str) -> None:
    names = ("schemas", "models", "arena", "league", "trainer", "inference", "players", "workers", "lifecycle", "ui")
    packages = [ROOT / name for name in names]
    text = "".join(path.read_text(encoding="utf-8") for package in packages for path in package.rglob("*.py"))
    assert set(re.findall(r"\"(LEAGUE_(?!STREAM\b)[A-Z_]+)", text)) == set(commands.ENVIRONMENT_VARIABLES)
    assert "| <code>LEAGUE_PLUGINS</code> |" in commands_page


def test_what_has_no_default_is_said_to_be_required(commands_page: str) -> None:
    section = commands_page.partition("`league config check`")[2].partition("\n#")[0]
    assert "league config check [OPTIONS] FILE\n" in section


def test_every_key_of_the_configuration_and_every_plugin_is_there() -> None:
    page = settings.render_page()
    for field in msgspec.structs.fields(LeagueConfig):
        assert f"| <code>{field.name}</code> |" in page
    for heading in ("`[rollout]` { #rollout }", "`[agents.NAME.remote]` { #remoteagent }", "`[stop.criterion]`"):
        assert f"### {heading}" in page
    assert "#### `pfsp` { #matchmaking-sampler-pfsp }" in page
    assert "#### `ppo_clip` { #trainer-loss-ppo_clip }" in page
    assert "| <code>kuhn_poker</code> | Two-player Kuhn poker" in page
    assert "| [table](#sprt) | <code>elo1 = 60.0, most_pairs = 40</code> |" in page, "what differs from the defaults"
    anchors = set(re.findall(r"{ #([\w-]+) }", page)) | {"plugins"}
    assert set(re.findall(r"\]\(#([\w-]+)\)", page)) <= anchors


def test_texts_are_shown_as_they_are_in_cells_too() -> None:
    said = "one of <worker> | `a|b` *or* [this]\nand ``x``"
    told = markdown.table(("a", "b"), [[markdown.inline(said), ""]])
    assert told.splitlines()[2].count("|") == 3
    assert "&lt;worker&gt; &#124; <code>a&#124;b</code> &#42;or&#42; &#91;this&#93; and <code>x</code>" in told


def test_a_package_that_lists_its_modules_lists_all_but_plugins() -> None:
    unlisted = {}
    for path in ROOT.glob("*/py.typed"):
        for package in path.parent.rglob("__init__.py"):
            listed = set(re.findall(r"``(\w+)/?``", package.read_text().partition('"""\n')[0]))
            own = [module for module in package.parent.glob("[!_]*.py") if "register(" not in module.read_text()]
            modules = {module.stem for module in own}
            if listed & modules and (missing := modules - listed):
                unlisted[str(package.parent.relative_to(ROOT))] = sorted(missing)
    assert unlisted == {}
