"""Markdown as GitHub reads it, written so that Python's Markdown reads the same."""

import re

from website.links import FENCE

BEGINS = r"(?:[-*] |\d+\. |\|)"
"""How a line of a list or of a table begins."""


def readable(text: str) -> str:
    """Sessions as sessions; a blank line before lists and tables within a paragraph.

    Python's Markdown needs that line, GitHub does not.
    """
    parts: list[str] = []
    end = 0
    for fence in FENCE.finditer(text):
        parts += [_with_blank_lines(text[end : fence.start()]), _session(fence[0])]
        end = fence.end()
    return "".join([*parts, _with_blank_lines(text[end:])])


def _with_blank_lines(text: str) -> str:
    """Before the first line of a list or table within a paragraph."""
    return re.sub(
        rf"^((?!{BEGINS}| |#|$).*\n)(?={BEGINS})", r"\1\n", text, flags=re.MULTILINE
    )


def _session(fence: str) -> str:
    return fence.replace("```python\n>>>", "```pycon\n>>>", 1)
