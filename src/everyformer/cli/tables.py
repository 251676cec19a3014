"""Tables for the terminal."""

import json
import re
from collections.abc import Iterable, Sequence

import numpy as np
import typer
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from everyformer.errors import printable
from everyformer.narration.numbers import vector
from everyformer.narration.proof import Narration
from everyformer.notebook import News
from everyformer.targets.gallery import GALLERY
from everyformer.verdict import Verdict

SHOWN_ROWS = 40


class _Console(Console):
    """A console that leaves a closed pipe to the program; rich would exit with 1."""

    def on_broken_pipe(self) -> None:
        """Raise what was raised."""
        raise


def show(*items: RenderableType) -> None:
    """Print to stdout: text as it is, tables as wide as the terminal."""
    console = _Console(highlight=False, markup=False)
    for item in items:
        console.print(item, soft_wrap=isinstance(item, str | Text))


def answer(found: object, *items: RenderableType, as_json: bool) -> None:
    """Print what was found: as JSON and nothing else, or in words and tables."""
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        show(*items)


def columns() -> int:
    """Of the terminal; 80 in a pipe, unless COLUMNS says otherwise."""
    return _Console().width


COLOURS = {"good": "bold green", "bad": "bold red", "open": "bold yellow"}
"""Of verdicts, on a terminal; not in a pipe, and not where NO_COLOR is set."""


def coloured(news: News) -> Text:
    """A verdict in the colour of the news that it is."""
    return Text(news.text, COLOURS.get(news.mood, ""))


def claimed(text: str) -> Text:
    """A text that begins with a verdict on its claim; the verdict is coloured."""
    found = re.match(r"(PROVED|REFUTED|UNKNOWN)\b(, CONDITIONAL\b)?", text)
    told = Text(text)
    if found:
        told.stylize(COLOURS[News.of(Verdict[found[1]]).mood], 0, found.end(1))
        told.stylize(COLOURS["open"], found.end(1), found.end())
    return told


def comparison(notes: Sequence[str], x: np.ndarray, f: np.ndarray, g: np.ndarray) -> Table:
    """f(x) beside g(x), one sequence of (count, n, d) in each row."""
    headings = ("input", "x", "f(x)", "g(x)", "|f-g|")
    table = titled("The function f and the network g", *headings)
    table.box, table.show_edge, table.padding = box.SIMPLE_HEAD, False, (0, 1, 0, 0)
    for note, *sequences in zip(notes, x, f, g, strict=True):
        gap = float(np.abs(sequences[1] - sequences[2]).max())
        cells = [" ".join(f"{v:z.3f}" for v in s.ravel()) for s in sequences]
        table.add_row(Text(note), *cells, f"{gap:.3f}")
    return table


def token_rows(rows: Iterable[tuple[str, Sequence[str]]]) -> Table:
    """The tokens of one sequence: as they were given, and after every step."""
    table = titled("The tokens after each step", "step")
    for name, cells in rows:
        while len(table.columns) <= len(cells):
            table.add_column(f"token {len(table.columns)}", justify="right")
        table.add_row(Text(printable(name)), *cells)
    return table


def f_and_g(told: Narration) -> Table:
    """What the network gives for each token, beside the function where it is known."""
    table = titled("g(x)" if told.f is None else "f(x) against g(x)")
    known = () if told.f is None else ("f(x)",)
    gap = () if told.f is None else ("|f - g|",)
    for heading in ("token", "x", *known, "g(x)", *gap):
        table.add_column(heading, justify="right")
    for j, (x, g) in enumerate(zip(told.x, told.g, strict=True)):
        cells = [str(j + 1), vector(x)]
        if told.f is None:
            cells.append(vector(g))
        else:
            off = np.abs(np.asarray(told.f[j] - g, dtype=np.float64)).max()
            cells += [vector(told.f[j]), vector(g), f"{float(off):.3g}"]
        table.add_row(*cells)
        if j + 1 == SHOWN_ROWS < len(told.x):
            table.caption = f"and {len(told.x) - SHOWN_ROWS:,} tokens more"
            break
    return table


def gallery() -> Table:
    """The targets that come with the library."""
    title = "Targets by name; -n and -d choose their size"
    table = titled(title, "name", "theorem", "what it computes")
    for name, make in GALLERY.items():
        theorem = "2, equivariant" if make(2, 1).equivariant else "3, positions"
        first_line = (make.__doc__ or "").strip().partition("\n")[0]
        table.add_row(name, theorem, Text(first_line))
    return table


def titled(title: str, *headings: str) -> Table:
    """A table with its title at the left, to be filled."""
    return Table(*headings, title=title, title_justify="left")
