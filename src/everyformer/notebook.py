"""Results in a notebook: a line of text, and tables of HTML in which every word is text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from everyformer.errors import printable
from everyformer.verdict import Verdict

COLOURS = {"good": "#1a7f37", "bad": "#b3261e", "open": "#8a6100"}
"""Of good news, of bad news, and of what is not known."""

LONGEST = 60


@dataclass(frozen=True)
class News:
    """A text that is good news (True), bad news (False), or neither of them."""

    text: str
    good: bool | None

    @classmethod
    def of(cls, verdict: Verdict) -> "News":
        """The verdict on a claim that one would like to hold."""
        goods = {Verdict.PROVED: True, Verdict.REFUTED: False, Verdict.UNKNOWN: None}
        return cls(str(verdict), goods[verdict])

    @property
    def mood(self) -> str:
        """One of good, bad, and open for UNKNOWN; empty for all others."""
        if self.good is None:
            return "open" if self.text == str(Verdict.UNKNOWN) else ""
        return "good" if self.good else "bad"


def short(words: str, longest: int = LONGEST) -> str:
    r"""Words of a user or a file on one line, cut where they are long.

    Example:
        >>> short("my\nfunction"), short("x" * 100, 8)
        ('my?function', 'xxxxx...')
    """
    shown = printable(words[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."


def html_table(
    caption: str, rows: Iterable[Sequence[str | News]], headings: Sequence[str] = ()
) -> str:
    """A table; names such as `</script>` are shown, not obeyed.

    Args:
        caption: What stands above it.
        rows: The cells. Without headings the first of a row is its name.
        headings: The first row.

    Example:
        >>> html_table("", [["<b>", "1"]]).count("&lt;b&gt;")
        1
    """
    parts = ['<table class="everyformer" style="text-align: left">']
    if caption:
        style = "text-align: left; font-weight: bold"
        parts.append(f'<caption style="{style}">{_text(caption)}</caption>')
    if headings:
        cells = "".join(f"<th>{_text(heading)}</th>" for heading in headings)
        parts.append(f"<thead><tr>{cells}</tr></thead>")
    lines = ["".join(f"<td>{_cell(cell)}</td>" for cell in row) for row in rows]
    parts.append("<tbody>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</tbody>")
    return "\n".join([*parts, "</table>"])


def html_lines(lines: Iterable[str]) -> str:
    """A paragraph, one line each."""
    return f"<p>{'<br>'.join(_text(line) for line in lines)}</p>"


def html_drawing(text: str) -> str:
    """Text whose characters stand in columns."""
    lines = (escape(printable(line)) for line in text.splitlines())
    return f'<pre style="line-height: 1">{chr(10).join(lines)}</pre>'


def _cell(cell: str | News) -> str:
    if isinstance(cell, str):
        return _text(cell)
    colour = COLOURS.get(cell.mood, "inherit")
    return f'<b style="color: {colour}">{_text(cell.text)}</b>'


def _text(words: str) -> str:
    """Escaped, and without what is not printed; a line break stays one."""
    return "<br>".join(escape(printable(line)) for line in words.split("\n"))
