"""Pictures as PNG and SVG files, and labels of untrusted text."""

import io
import warnings
from pathlib import Path

import msgspec
from matplotlib import rc_context
from matplotlib.figure import Figure

_MOST_LETTERS = 120


def to_printable(text: str) -> str:
    """Make untrusted text visible on one line: no control characters, no change of direction."""
    cut = text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in cut)


def escape_label(text: str) -> str:
    """Escape untrusted text so that Matplotlib shows it literally: neither parsed as a formula nor left out."""
    printable = to_printable(text).replace("$", r"\$")
    # A legend omits labels that begin with an underscore.
    return f"\u200b{printable}" if printable.startswith("_") else printable


class Picture(msgspec.Struct, frozen=True):
    """A figure with its title and caption."""

    figure: Figure
    title: str
    caption: str
    """Explanation of the intervals and of what is left out."""


def write_picture(picture: Picture, path: Path) -> None:
    """Write a picture as ``.png`` or ``.svg`` by the file's extension; the same bytes each time.

    Raises:
        KeyError: another extension.
        OSError: the file cannot be written.
    """
    draw = {".png": png_bytes, ".svg": _svg}[path.suffix.lower()]
    with warnings.catch_warnings():
        # Letters missing from the font are drawn as boxes; there is no better substitute.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = draw(picture)
    path.write_bytes(figure)


def png_bytes(picture: Picture) -> bytes:
    """A picture as PNG, with its title and caption as metadata."""
    out = io.BytesIO()
    about = {"Title": to_printable(picture.title), "Description": picture.caption, "Software": None}
    picture.figure.savefig(out, format="png", dpi=120, metadata=about)
    return out.getvalue()


def _svg(picture: Picture) -> bytes:
    out = io.BytesIO()
    about = {"Title": to_printable(picture.title), "Description": picture.caption, "Date": None, "Creator": None}
    # Letters become shapes, so that every machine shows the same; the salt makes the ids within reproducible.
    with rc_context({"svg.hashsalt": "league", "svg.fonttype": "path"}):
        picture.figure.savefig(out, format="svg", metadata=about)
    return out.getvalue()
