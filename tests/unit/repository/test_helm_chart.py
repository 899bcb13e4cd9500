"""The Helm chart: rendered with its defaults, it is the manifests of ``deploy/kubernetes``.

The renderer below has the few features of Helm's templates that the chart may use: paths and variables, ``quote``,
``toJson``, ``if``, ``range`` over a map, and trimmed white space. Anything else fails.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CHART, MANIFESTS = ROOT / "deploy" / "helm", ROOT / "deploy" / "kubernetes"
PIPES = {"quote": lambda value: json.dumps(str(value)), "toJson": json.dumps}

Tokens = list[tuple[bool, str]]
"""Actions, and text between them."""


def tokenize(template: str) -> Tokens:
    """Split a template; white space that ``{{-`` and ``-}}`` trim is gone."""
    template = re.sub(r"\s*\{\{- ", "{{ ", template)
    template = re.sub(r" -\}\}\s*", " }}", template)
    parts = re.split(r"\{\{ (.*?) \}\}", template)
    return [(place % 2 == 1, part) for place, part in enumerate(parts)]


def evaluate(expression: str, scope: Mapping[str, Any]) -> Any:
    path, *pipes = expression.split(" | ")
    name, *keys = path.split(".")
    assert re.fullmatch(r"\$\w*", name), f"{path!r}: expected a path that begins with a variable"
    value = scope[name]
    for key in keys if keys != [""] else []:
        value = value[key]
    for pipe in pipes:
        value = PIPES[pipe](value)
    return value


def body_end(tokens: Tokens, start: int) -> int:
    """Place of the ``end`` of a block whose body begins at ``start``."""
    depth = 1
    for place in range(start, len(tokens)):
        is_action, text = tokens[place]
        depth += is_action and text.startswith(("if ", "range "))
        depth -= is_action and text == "end"
        if not depth:
            return place
    raise AssertionError("a block without its end")


def render_tokens(tokens: Tokens, scope: Mapping[str, Any]) -> str:
    rendered, place = "", 0
    while place < len(tokens):
        is_action, text = tokens[place]
        place += 1
        if not is_action:
            rendered += text
            continue
        if not text.startswith(("if ", "range ")):
            value = evaluate(text, scope)
            assert isinstance(value, str | int), f"{text!r}: {value!r}; expected toJson for a table"
            rendered += str(value)
            continue
        end = body_end(tokens, place)
        body, place = tokens[place:end], end + 1
        if text.startswith("if "):
            rendered += render_tokens(body, scope) if evaluate(text.removeprefix("if "), scope) else ""
            continue
        names, _, expression = text.removeprefix("range ").partition(" := ")
        key, value_name = names.split(", ")
        for name, value in sorted(evaluate(expression, scope).items()):
            rendered += render_tokens(body, {**scope, key: name, value_name: value})
    return rendered


def render_chart(**changes: Any) -> dict[tuple[str, str], Any]:
    """Documents of all templates by kind and name."""
    values = yaml.safe_load((CHART / "values.yaml").read_text()) | changes
    texts = (path.read_text() for path in sorted((CHART / "templates").iterdir()))
    return index(
        document for text in texts for document in load(render_tokens(tokenize(text), {"$": {"Values": values}}))
    )


def load(text: str) -> list[Any]:
    return [document for document in yaml.safe_load_all(text) if document is not None]


def index(documents: Any) -> dict[tuple[str, str], Any]:
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


def manifests(*names: str) -> dict[tuple[str, str], Any]:
    return index(document for name in names for document in load((MANIFESTS / name).read_text()))


def test_the_chart_with_its_defaults_is_the_manifests() -> None:
    assert render_chart() == manifests("brokers.yaml", "workers.yaml")


def test_the_chart_with_scaling_has_the_manifests_scaled_objects() -> None:
    scaling = yaml.safe_load((CHART / "values.yaml").read_text())["autoscaling"] | {"enabled": True}
    expected = manifests("brokers.yaml", "workers.yaml", "autoscaling.yaml")
    assert render_chart(autoscaling=scaling) == expected


def test_values_reach_every_worker() -> None:
    rendered = render_chart(image={"repository": "registry/league", "tag": "7"}, nats="nats://elsewhere:4222")
    for (kind, name), document in rendered.items():
        if kind in ("Job", "StatefulSet") and name != "broker":
            [container] = document["spec"]["template"]["spec"]["containers"]
            assert container["image"] == "registry/league:7", name
            assert {"name": "LEAGUE_NATS", "value": "nats://elsewhere:4222"} in container["env"], name


def test_chart_citation_and_images_have_the_projects_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    assert (chart["version"], chart["appVersion"], citation) == (version, version, version)
    assert set(re.findall(r"event-sourced-league:(\S+)", (ROOT / "docker-compose.yml").read_text())) == {version}


@pytest.mark.parametrize("template", ["{{ include $.Values.x }}", "{{ $.Values.x | upper }}", "{{ if $.Values.x }}"])
def test_a_feature_that_the_renderer_lacks_is_an_error(template: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        render_tokens(tokenize(template), {"$": {"Values": {"x": 1}}})
