"""Scripts with cells (`# %%`), run from top to bottom, as Markdown with what they print.

A cell of Markdown (`# %% [markdown]`) is text. Other cells are shown as they stand, then
what they print, then every picture (a matplotlib Figure) and page (of `explore`) that they
give a name. What lies below `if __name__ == "__main__":` is shown without that line. A
script that may take minutes is asked to be short: it finds `--smoke` among its arguments.
"""

import ast
import io
import re
import sys
import textwrap
from collections.abc import Generator, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CELL = re.compile(r"^# %%(.*)$", re.MULTILINE)
MAIN = 'if __name__ == "__main__":\n'


@dataclass(frozen=True)
class Cell:
    """A part of a script.

    Attributes:
        text: Its lines.
        line: The number of the first in the file, from 1.
        is_markdown: Whether it is text, in comments.
    """

    text: str
    line: int
    is_markdown: bool

    def __str__(self) -> str:
        """As it is shown."""
        text = self.text.strip("\n")
        if self.is_markdown:
            return re.sub(r"^# ?", "", text, flags=re.MULTILINE)
        if text.startswith(MAIN):
            text = textwrap.dedent(text.removeprefix(MAIN))
        return f"```python\n{text}\n```" if text else ""


@dataclass
class Tutorial:
    """A script that was run.

    Attributes:
        markdown: The page.
        files: What the page shows, by name.
    """

    markdown: str
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])


def cells(source: str) -> Iterator[Cell]:
    """The cells of a script, without its docstring."""
    first = ast.parse(source).body[0]
    lines = source.splitlines(keepends=True)
    rest = "\n" * (first.end_lineno or 0) + "".join(lines[first.end_lineno :])
    starts = [(0, 0, "")] + [(m.start(), m.end(), m[1]) for m in CELL.finditer(rest)]
    ends = [start for start, _, _ in starts[1:]] + [len(rest)]
    for (_, begin, kind), end in zip(starts, ends, strict=True):
        text = rest[begin:end]
        if text.strip():
            yield Cell(text, rest.count("\n", 0, begin) + 1, kind.strip() == "[markdown]")


@contextmanager
def _arguments(*given: str) -> Generator[None, None, None]:
    before, sys.argv = sys.argv, [*given]
    try:
        yield
    finally:
        sys.argv = before


def run(script: Path) -> Tutorial:
    """Run a script, cell by cell; the docstring's first line is the title."""
    source = script.read_text(encoding="utf-8")
    title, _, lead = (ast.get_docstring(ast.parse(source)) or script.stem).partition("\n")
    parts = [f"# {title.removesuffix('.')}", lead.strip()]
    files: dict[str, bytes] = {}
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(script)}
    for cell in cells(source):
        parts.append(str(cell))
        if cell.is_markdown:
            continue
        before = {id(value) for value in names.values()}
        printed = io.StringIO()
        code = compile("\n" * (cell.line - 1) + cell.text, str(script), "exec")
        with redirect_stdout(printed), _arguments(str(script), "--smoke"):
            exec(code, names)
        if printed.getvalue().strip():
            parts.append(_shown(printed.getvalue()))
        for name, value in names.items():
            if id(value) not in before and (made := _file(value)):
                suffix, content = made
                place = f"{script.stem}_{len(files) + 1}{suffix}"
                files[place] = content
                parts.append(framed(place, name) if suffix == ".html" else f"![]({place})")
    parts.append(f"*This page is `examples/{script.name}`, run when the site was built.*")
    return Tutorial("\n\n".join(filter(None, parts)) + "\n", files)


def framed(place: str, title: str) -> str:
    """A page in a frame of its own, which shares nothing with the page around it."""
    return (
        f'<iframe class="explorer" src="{place}" '
        'sandbox="allow-scripts allow-downloads allow-popups" '
        f'title="{title}" loading="lazy"></iframe>\n\n'
        f'<a href="{place}" target="_blank">Open it on a page of its own</a>'
    )


def _shown(printed: str) -> str:
    """What was printed; a table of Markdown as a table."""
    lines = printed.strip("\n").splitlines()
    if any(re.match(r"\|-+\|", line) for line in lines):
        return "\n".join(lines)
    return "``` { .text .output }\n" + "\n".join(lines) + "\n```"


def _file(value: Any) -> tuple[str, bytes] | None:
    """A picture or a page as a file."""
    from matplotlib.figure import Figure

    from everyformer.explore.show import Page

    if isinstance(value, Page):
        return ".html", value.html.encode()
    if isinstance(value, Figure):
        file = io.BytesIO()
        value.savefig(file, format="png", dpi=160, bbox_inches="tight")
        return ".png", file.getvalue()
    return None
