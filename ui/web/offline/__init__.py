"""Pages in files, which need no server: a match, and a whole league.

- ``elements``    HTML elements, tables and whole documents; all texts are escaped
- ``match_page``  one match with its maps or its transcript, for ``league match show -o`` and the match page's download
- ``league_site`` a league with its agents and matches, for ``league site``, into a ``SiteFolder``

Each file holds its styles and its script, and its content security policy permits these two and nothing else.
"""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from schemas.errors import UsageError

MATCH_FOLDER = "matches"
_LIST = "site.json"
_OWN_PATH = re.compile(rf"(?:{MATCH_FOLDER}/)?[A-Za-z0-9_@][A-Za-z0-9_@.-]*\.(?:html|csv)")


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
                "not there yet, or of an earlier `league site`"
            ) from None
        self._old = [] if listed is None else listed.files

    async def write(self, files: AsyncIterator[SiteFile]) -> tuple[int, int]:
        """Write the files and remove those of the earlier site that are not among them; returns number and bytes."""
        written, size = [], 0
        try:
            (self.path / MATCH_FOLDER).mkdir(parents=True, exist_ok=True)
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
                f"--to {self.path}: cannot be written: {error.strerror} ({error.filename}); expected a folder that can"
            ) from error
        return len(written), size

    def _write_list(self, files: list[str]) -> None:
        (self.path / _LIST).write_bytes(msgspec.json.format(msgspec.json.encode(_SiteList(1, sorted(files)))))
