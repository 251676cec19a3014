"""Tables of results for the terminal: a heading for each column, and how rows fill it."""

from collections.abc import Collection, Iterable, Mapping
from string import Formatter
from typing import Any

from rich.table import Table

UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "mega": 1e6, "giga": 1e9, "tera": 1e12}


class _Cells(Formatter):
    """Formats numbers also in a unit, which stands before the rest: `{bytes:MiB.0f}`."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            raise KeyError
        unit = next((unit for unit in UNITS if format_spec.startswith(unit)), "")
        in_unit = value / UNITS[unit] if unit else value
        return super().format_field(in_unit, format_spec.removeprefix(unit))


def table_of(
    title: str,
    rows: Iterable[Mapping[str, Any]],
    columns: Mapping[str, str],
    left: Collection[str] = (),
    head: int = 0,
    longest: int | None = None,
) -> Table:
    """A line for each row; what a row does not have stays empty.

    Args:
        title: Of the table.
        rows: Of the report; one that has "failed" says why after its head.
        columns: Headings, and the format of the cells below, in the names of a row.
        left: Headings of columns of words; numbers are at the right.
        head: How many columns say what a row is about.
        longest: Letters of a reason that are shown.

    Example:
        >>> made = table_of("", [{"n": 2048, "bytes": 2**21}], {"n": "{n:,}",
        ...     "MiB": "{bytes:MiB.0f}", "s": "{s}"})
        >>> [list(column.cells) for column in made.columns]
        [['2,048'], ['2'], ['']]
    """
    shown = Table(title=title)
    for heading in columns:
        shown.add_column(heading, justify="left" if heading in left else "right")
    for row in rows:
        cells = [_cell(form, row) for form in columns.values()]
        if "failed" in row:
            cells = [*cells[:head], row["failed"][:longest]]
        shown.add_row(*cells)
    return shown


def _cell(form: str, row: Mapping[str, Any]) -> str:
    try:
        return _Cells().vformat(form, (), row)
    except KeyError:
        return ""
