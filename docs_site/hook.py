"""What mkdocs calls while it builds the site (``hooks`` in ``mkdocs.yml``)."""

import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs_site import commands, events, settings

PAGES = {"events": events.write, "configuration": settings.write, "commands": commands.write}
"""What writes each page of ``reference/``."""

_FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_NAMED = re.compile(r"(?<![`\[])`(?:docs/)?((?:\d+-)?[\w-]+\.md)`(?!`)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code."""
    for name, write in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=write()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links of the pages that a text names as files: the texts are read beside the code as well."""
    titles = dict(_titles(config.nav))

    def linked(found: re.Match[str]) -> str:
        name = found[1]
        return f"[{titles[name]}]({name})" if name in titles else found[0]

    parts = _FENCED.split(markdown)
    return "".join(part if place % 2 else _NAMED.sub(linked, part) for place, part in enumerate(parts))


def _titles(nav: Any) -> list[tuple[str, str]]:
    """File and title of every page of the navigation."""
    if isinstance(nav, dict):
        return [
            pair
            for title, below in nav.items()
            for pair in ([(below, title)] if isinstance(below, str) else _titles(below))
        ]
    return [pair for one in nav or [] for pair in _titles(one)]
