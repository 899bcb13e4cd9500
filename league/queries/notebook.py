"""Results of ``league.open`` as notebooks show them: tables, and matches with a slider over their turns."""

import html
import importlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints, overload

import msgspec

from arena.games.base import Turn
from league.projections.query import QueryResult
from league.queries.matches import EpisodeNode, MapPosition, MatchEvents, MatchReplay, render_map, share_lines
from schemas.errors import UsageError, format_choices, translate_missing_package
from schemas.events import SeatResult

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

_SHOWN_ROWS = 50
S = TypeVar("S", bound=msgspec.Struct)
_TYPES: dict[Any, str] = {int: "int64", float: "float64", bool: "bool", str: "string"}
"""Arrow's names of the types of fields."""


class Table:
    """Rows of a result, for pandas, polars, Arrow, and the notebook, which shows ``title`` above them.

    Iterating yields rows as dicts by column; ``table[0]`` is a row, ``table["rating"]`` the values of a column. Where
    Arrow is installed (the extra ``arrow``), libraries that read its C stream interface (polars, pandas 3, DuckDB) take
    the object itself.
    """

    def __init__(self, data: "pa.Table | QueryResult", title: str = "") -> None:
        self._result = data if isinstance(data, QueryResult) else QueryResult(data.column_names, [], [], arrow=data)
        self.title = title

    @cached_property
    def arrow(self) -> "pa.Table":
        """The rows as an Arrow table.

        Raises:
            MissingPackageError: pyarrow is not installed.
        """
        result = self._result
        if result.arrow is not None:
            return result.arrow
        with translate_missing_package():
            import pyarrow as pa
        arrays = [
            pa.array([row[column] for row in result.rows], kind if kind in _TYPES.values() else None)
            for column, kind in enumerate(result.types)
        ]
        return pa.table(arrays, result.columns)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return self._result.columns

    def to_pandas(self) -> "pd.DataFrame":
        """The rows as a pandas DataFrame.

        Raises:
            UsageError: pandas is not installed.
        """
        pandas = _import("pandas")
        if (arrow := self._result.arrow) is not None:
            return arrow.to_pandas()
        frame: pd.DataFrame = pandas.DataFrame(self._result.rows, columns=self.columns)
        return frame

    def to_polars(self) -> "pl.DataFrame":
        """The rows as a polars DataFrame.

        Raises:
            UsageError: polars is not installed.
        """
        polars = _import("polars")
        frame: pl.DataFrame
        if (arrow := self._result.arrow) is not None:
            frame = polars.from_arrow(arrow)
        else:
            frame = polars.DataFrame(self._result.rows, self.columns, orient="row", infer_schema_length=None)
        return frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.arrow.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        arrow = self._result.arrow
        return len(self._result.rows) if arrow is None else int(arrow.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self.columns, row, strict=True)) for row in self._rows())

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, key: str) -> list[Any]: ...

    def __getitem__(self, key: int | str) -> dict[str, Any] | list[Any]:
        """A row by its number, or a column's values by its name; ``KeyError`` names the columns that there are."""
        if isinstance(key, int):
            if not -len(self) <= key < len(self):
                raise IndexError(f"row {key}; expected one of {len(self):,} rows")
            number = key % len(self)
            return next(islice(self, number, None))
        if key not in self.columns:
            raise KeyError(f"{key!r}; expected {format_choices(self.columns, key)}")
        column = self.columns.index(key)
        return [row[column] for row in self._rows()]

    def _rows(self) -> Iterator[Sequence[Any]]:
        yield from self._result.rows
        for batch in self._result.arrow.to_batches() if self._result.arrow is not None else ():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def __repr__(self) -> str:
        return f"{self.title.strip() or 'Table'} ({len(self):,} rows: {', '.join(self.columns)})"

    def _repr_html_(self) -> str:
        title = f"<p>{html.escape(self.title)}</p>" if self.title else ""
        more = f"<p>{_SHOWN_ROWS} of {len(self):,} rows</p>" if len(self) > _SHOWN_ROWS else ""
        return f"{title}{_table_html(self.columns, islice(self._rows(), _SHOWN_ROWS))}{more}"


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise UsageError(
            f"to_{package}: {package} is not installed; expected `pip install {package}`, or the rows: iterating "
            "yields dicts"
        ) from None


def struct_table(kind: type[S], rows: Iterable[S], columns: Sequence[str] = (), title: str = "") -> Table:
    """A table of structs whose fields are numbers, texts or None; ``columns`` selects fields, by default all."""
    hints = get_type_hints(kind)
    names = list(columns or kind.__struct_fields__)
    values = [tuple(getattr(row, name) for name in names) for row in rows]
    # Of ``float | None`` the first part.
    parts = [next(part for part in get_args(hints[name]) or (hints[name],) if part is not type(None)) for name in names]
    return Table(QueryResult(names, [_TYPES[part] for part in parts], values), title)


def _table_html(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return html.escape(f"{value:,.6g}" if isinstance(value, float) else str(value))


class Match:
    """A match: its events, its seats, and what was played."""

    def __init__(self, events: MatchEvents, record: bytes | None, replay: MatchReplay, problem: str) -> None:
        self.events = events
        """The recorded events: ``result``, ``failure``, ``draw``, ``voiding``."""
        self.replay = replay
        """Turns, or episodes with their model calls; empty without a record."""
        self.problem = problem
        """Why there is nothing to replay; empty otherwise."""
        self._record = record

    @property
    def match_id(self) -> str:
        """Its id."""
        return self.events.match_id

    @property
    def turns(self) -> list[Turn]:
        """Moves and notes, turn by turn."""
        return self.replay.turns

    @property
    def seats(self) -> Table:
        """Seat, role, agent, score, rank and whether it was trained on; empty unless it finished."""
        result = self.events.result
        seats = result.seats if result else ()
        return struct_table(SeatResult, seats, ("seat", "role", "agent", "score", "rank", "trainable"))

    def __repr__(self) -> str:
        result, failure = self.events.result, self.events.failure
        if result is not None:
            text = f"{result.game} {result.environment}".strip()
            text += f", {result.purpose}, {result.length} turns, ended by {result.reason or 'its rules'}"
        else:
            text = f"failed: {failure.error}" if failure is not None else "neither finished nor failed yet"
        return f"Match {self.match_id}: {text}" + (", voided" if self.events.voiding is not None else "")

    def _repr_html_(self) -> str:
        parts = [f"<p>{html.escape(repr(self))}</p>", self.seats._repr_html_() if self.events.result else ""]
        if self.problem:
            parts.append(f"<p>{html.escape(f'No moves to show: {self.problem}')}</p>")
        if self.replay.episodes:
            slides = [slide for episode in self.replay.episodes for slide in _episode_slides(episode)]
        else:
            slides = [_turn_html(turn) for turn in self.turns]
        if self._record is not None and self.replay.pictures:
            return "".join(parts) + _maps_html(self._record, self.replay.pictures, slides)
        return "".join(parts) + _slider_html(slides)


def _turn_html(turn: Turn) -> str:
    rows = [[seat, "; ".join(moves)] for seat, moves in turn.moves.items()]
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in turn.notes)
    return f"<p><b>{html.escape(turn.title)}</b></p>{_table_html(('seat', 'moves'), rows)}{notes}"


def _maps_html(record: bytes, pictures: Sequence[MapPosition], turns: Sequence[str]) -> str:
    """A slider over maps with the moves of their turns, and one of the end, as a document in a frame.

    A script draws the maps, since they share most of their lines.
    """
    lines, runs = share_lines([render_map(record, number) or "" for number in range(len(pictures))])
    slides = [
        f'<img alt="{html.escape(picture.words)}">{turn}' for picture, turn in zip(pictures, [*turns, ""], strict=True)
    ]
    data = msgspec.json.encode([lines, runs]).decode().replace("<", "\\u003c")
    script = (
        f"const [lines, runs] = {data};\n"
        "const text = (own) => own.flatMap(([first, count]) => lines.slice(first, first + count)).join('\\n');\n"
        "document.querySelectorAll('img').forEach((image, i) => "
        "{ image.src = `data:image/svg+xml,${encodeURIComponent(text(runs[i]))}`; });"
    )
    style = "img{max-width:40em}td{padding-right:1em;vertical-align:top}"
    page = f'<!doctype html><meta charset="utf-8"><style>{style}</style>{_slider_html(slides)}<script>{script}</script>'
    return (
        f'<iframe sandbox="allow-scripts" title="Maps of the match" style="width:100%;height:48em;border:0" '
        f'srcdoc="{html.escape(page)}"></iframe>'
    )


def _episode_slides(episode: EpisodeNode) -> list[str]:
    title = f"<p><b>{html.escape(f'{episode.episode_type} {episode.id}')}</b></p>"
    slides = []
    for call in episode.calls:
        texts = [*((message["role"], message["content"]) for message in call.prompt), (call.role, call.said)]
        slides.append(f"{title}{_table_html(('role', 'text'), texts)}")
    return slides


def _slider_html(slides: Sequence[str]) -> str:
    """One slide at a time under a slider; the last one first, which is what a page without scripts shows."""
    if not slides:
        return ""
    last = len(slides) - 1
    show = "this.parentElement.querySelectorAll('section').forEach((s,i)=>{s.hidden=i!=this.value})"
    sections = "".join(
        f"<section{'' if number == last else ' hidden'}>{slide}</section>" for number, slide in enumerate(slides)
    )
    return (
        f'<div><input type="range" min="0" max="{last}" value="{last}" style="width:40em" aria-label="turn" '
        f'oninput="{show}">{sections}</div>'
    )
