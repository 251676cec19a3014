"""Tables for the terminal."""

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from everyformer.model.network import StageState
from everyformer.notebook import News
from everyformer.targets.gallery import GALLERY
from everyformer.verdict import Verdict

SHOWN_TOKENS = 6
SHOWN_SHIFTS = 40


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


def number(value: Any) -> str:
    """A number in full where that is short, else to six digits.

    Example:
        >>> number(210427917.0625), number(0.46354166666666663), number(Fraction(21, 2))
        ('210427917.0625', '0.463542', '21/2')
    """
    exact = isinstance(value, int | Fraction)
    full = str(value) if exact else repr(float(value)).removesuffix(".0")
    return full if len(full) <= 16 else f"{float(value):.6g}"


def tokens(sequence: np.ndarray) -> list[str]:
    """The tokens of one sequence, (n, d), each as text; many are cut short."""
    rows = [[number(entry) for entry in token] for token in sequence[:SHOWN_TOKENS]]
    texts = [row[0] if len(row) == 1 else f"({', '.join(row)})" for row in rows]
    return texts + ["..."] * (len(sequence) > SHOWN_TOKENS)


def comparison(notes: Sequence[str], x: np.ndarray, f: np.ndarray, g: np.ndarray) -> Table:
    """f(x) beside g(x), one sequence of (count, n, d) in each row."""
    table = _table("The function f and the network g")
    table.box, table.show_edge, table.padding = box.SIMPLE_HEAD, False, (0, 1, 0, 0)
    for heading in ("input", "x", "f(x)", "g(x)", "|f-g|"):
        table.add_column(heading)
    for note, *sequences in zip(notes, x, f, g, strict=True):
        gap = float(np.abs(sequences[1] - sequences[2]).max())
        cells = [" ".join(f"{v:z.3f}" for v in s.ravel()) for s in sequences]
        table.add_row(Text(note), *cells, f"{gap:.3f}")
    return table


def stage_states(steps: Iterable[StageState]) -> Table:
    """The tokens of one sequence after every stage."""
    table = _table("The tokens after each stage")
    table.add_column("stage")
    for step in steps:
        cells = tokens(step.state)
        while len(table.columns) <= len(cells):
            table.add_column(f"token {len(table.columns)}", justify="right")
        table.add_row(step.stage, *cells)
    return table


def moves(steps: Sequence[StageState]) -> list[tuple[int, int, Any, Any]]:
    """(number of the shift, token, id before, id after) of every id that changed."""
    found: list[tuple[int, int, Any, Any]] = []
    for shift in range(1, len(steps)):
        before, after = steps[shift - 1].ids, steps[shift].ids
        if before is None or after is None:
            continue
        changed = np.flatnonzero(np.asarray(before != after, dtype=bool))
        found += [(shift, int(j) + 1, before[j], after[j]) for j in changed]
    return found


def shift_moves(steps: Sequence[StageState]) -> Table:
    """The ids before and after each selective shift that moved a token."""
    found = moves(steps)
    table = _table(f"What the {len(steps) - 1:,} selective shifts moved")
    for heading in ("shift", "token", "id before", "id after"):
        table.add_column(heading, justify="right")
    for shift, token, before, after in found[:SHOWN_SHIFTS]:
        table.add_row(f"{shift:,}", str(token), number(before), number(after))
    if len(found) > SHOWN_SHIFTS:
        table.caption = f"and {len(found) - SHOWN_SHIFTS:,} more"
    if not found:
        table.caption = "no token moved: all ids are equal, or lie outside the grid"
    return table


def gallery() -> Table:
    """The targets that come with the library."""
    table = _table("Targets by name; -n and -d choose their size")
    for heading in ("name", "theorem", "what it computes"):
        table.add_column(heading)
    for name, make in GALLERY.items():
        theorem = "2, equivariant" if make(2, 1).equivariant else "3, positions"
        first_line = (make.__doc__ or "").strip().partition("\n")[0]
        table.add_row(name, theorem, Text(first_line))
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left")
