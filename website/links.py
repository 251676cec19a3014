"""Relative links of Markdown pages: where they lead, and whether something is there.

A link is read as GitHub reads it, relative to the file in which it stands; headings get the
anchors that GitHub gives them. Code, fenced or within a line, has no links.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FENCE = re.compile(r"^ *(```+|~~~+)[^\n]*\n.*?^ *\1[ \t]*$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
INLINE_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^ {0,3}\[[^\]^]+\]:\s*<?(\S+?)>?\s*$", re.MULTILINE)
ATTRIBUTE = re.compile(r"\b(?:href|src)=\"([^\"]+)\"")
HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.*?)[ \t]*#*$", re.MULTILINE)
NAMED = re.compile(r"\b(?:id|name)=\"([^\"]+)\"")
LOADED = re.compile(
    r"<(?:script|link|img|iframe|source|video|audio|embed)\b[^>]*?"
    r"\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)"
)
ELSEWHERE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//")


@dataclass(frozen=True)
class Link:
    """A relative link.

    Attributes:
        target: As it stands in the page: "certificates.md#work".
        start: Where that begins in the text of the page.
    """

    target: str
    start: int

    @property
    def path(self) -> str:
        """The file, empty for a heading of the same page."""
        return self.target.partition("#")[0]

    @property
    def anchor(self) -> str:
        """The heading, empty for none."""
        return self.target.partition("#")[2]


def without_code(text: str) -> str:
    """The text with blanks where code and comments were; all else stays in its place."""
    for pattern in (FENCE, INLINE_CODE, COMMENT):
        text = pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return text


def links(text: str) -> Iterator[Link]:
    """The relative links of a page, pictures among them."""
    plain = without_code(text)
    for pattern in (INLINE_LINK, DEFINITION, ATTRIBUTE):
        for found in pattern.finditer(plain):
            if not ELSEWHERE.match(found[1]):
                yield Link(found[1], found.start(1))


def relinked(text: str, new: Callable[[Link], str]) -> str:
    """The text with other targets."""
    for link in sorted(links(text), key=lambda one: -one.start):
        end = link.start + len(link.target)
        text = text[: link.start] + new(link) + text[end:]
    return text


def anchors(text: str) -> set[str]:
    """What may stand behind #: headings in lower case, hyphens for blanks, and names."""
    fenceless = FENCE.sub("", text)
    found: set[str] = set(NAMED.findall(without_code(text)))
    for heading in HEADING.findall(fenceless):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        known = {name, *(f"{name}-{k}" for k in range(1, len(found) + 1))}
        found.add(name if name not in found else min(known - found, key=len))
    return found


def loaded_from_elsewhere(html: str) -> list[str]:
    """Addresses from which a page loads something; what it only links to is not meant."""
    return LOADED.findall(html)


def resolved(page: str, link: Link) -> str:
    """The file that a link of a page leads to, both as paths in the repository."""
    if not link.path:
        return page
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link.path))


def faults(root: Path, page: str) -> list[str]:
    """Links of a page that lead nowhere, each with its line and the reason."""
    text = (root / page).read_text(encoding="utf-8")
    found: list[str] = []
    for link in links(text):
        target = resolved(page, link)
        file = root / target
        line = text.count("\n", 0, link.start) + 1
        if target.startswith("..") or not file.exists():
            found.append(f"{page}:{line}: {link.target}: {target} does not exist")
        elif link.anchor and file.suffix == ".md" and link.anchor not in _anchors(file):
            found.append(f"{page}:{line}: {link.target}: {target} has no such heading")
    return found


@cache
def _anchors(file: Path) -> set[str]:
    return anchors(file.read_text(encoding="utf-8"))
