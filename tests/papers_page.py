"""The page "From the papers to the code", of docs/papers.toml and the marks in the code.

`python -m tests.papers_page` writes docs/papers.md. An entry of the file is a table
[[PAPER]] with

    place    a place of `everyformer.papers`: "Lemma 5", "Section 6.1"
    says     what stands there, in a line
    code     names below `everyformer`; those marked with `@implements` are found anyway
    command  how it is run in a shell
    test     names below `tests`, as pytest writes them
    page     pages below docs, with headings
    note     what else to know
    why      why there is neither code nor a command

An entry has code or a command, and then a test; or it says why not.
"""

import ast
import importlib
import pkgutil
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import everyformer
from everyformer.bench.themes import THEMES
from everyformer.cli.commands import COMMANDS
from everyformer.experiments.registry import EXPERIMENTS
from everyformer.papers import LUO2022, YUN2020, YUN2020B, Citation, Paper

ROOT = Path(__file__).parents[1]
SOURCE, PAGE = ROOT / "docs" / "papers.toml", ROOT / "docs" / "papers.md"
SNAPSHOTS = ROOT / "tests" / "cli" / "snapshots"
PAPERS = {"yun2020": YUN2020, "yun2020b": YUN2020B, "luo2022": LUO2022}

HEAD = """# From the papers to the code

Every definition, theorem, lemma, claim, figure and table of the papers, and what their
sections, the poster and the slides say beside them, in order: what there is for it here, or
why there is nothing. Made from [papers.toml](papers.toml) and the marks `@implements` in
the code by `python -m tests.papers_page`; a test fails if a place is left out, if an entry
has nothing, or if something that is named does not exist. Names of code lie below
`everyformer`, tests below `tests`.

{counts}
"""

ABOUT = {
    "yun2020b": "The text of this paper was not at hand, except its abstract: places are "
    "named after what others quote of it, and the proof is our own "
    "([sparse.md](constructions/sparse.md)).\n",
    "luo2022": "Theorems, the proposition, figures and tables are those that the slides "
    "show; the appendix of the paper was not at hand.\n",
}


@dataclass(frozen=True)
class Entry:
    """What there is for one thing that a paper says."""

    paper: str
    place: str
    says: str
    code: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    page: tuple[str, ...] = ()
    note: str = ""
    why: str = ""

    def __str__(self) -> str:
        return f"{PAPERS[self.paper].key}, {self.place}: {self.says}"


def entries(source: str, marked: Mapping[Citation, Sequence[str]]) -> list[Entry]:
    """The entries of the file.

    Code that is marked with a place and named by none of its entries is that of the first.
    """
    found: list[Entry] = []
    known = {field.name for field in fields(Entry)} - {"paper"}
    for paper, tables in tomllib.loads(source).items():
        left = {
            place: list(marked.get(Citation(PAPERS[paper], place), ()))
            for place in (table["place"] for table in tables)
        }
        for table in tables:
            if not table.keys() <= known:
                msg = f"{table} has {table.keys() - known}; an entry has {known}."
                raise ValueError(msg)
            named = left[table["place"]]
            left[table["place"]] = [
                one for one in named if one not in table.get("code", ())
            ]
        for table in tables:
            parts: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in table.items()
            }
            more = left.pop(table["place"], ())
            parts["code"] = (*parts.get("code", ()), *more)
            found.append(Entry(paper, **parts))
    return found


@cache
def marked_code() -> dict[Citation, list[str]]:
    """The names of all functions, classes and members marked with `@implements`."""
    found: dict[Citation, list[str]] = {}
    for info in sorted(
        pkgutil.walk_packages(everyformer.__path__, "everyformer."), key=str
    ):
        module = importlib.import_module(info.name)
        for thing in _things(module):
            marks: tuple[Citation, ...] = getattr(thing, "__implements__", ())
            for citation in marks:
                name = f"{thing.__module__}.{thing.__qualname__}"
                names = found.setdefault(citation, [])
                if not (
                    name.removeprefix("everyformer.") in names
                    or thing.__name__.startswith("_")
                ):
                    names.append(name.removeprefix("everyformer."))
    return found


def _things(module: Any) -> Iterator[Any]:
    """What a module defines, and the members of its classes."""
    for thing in list(vars(module).values()):
        yield thing
        if isinstance(thing, type):
            for member in vars(thing).values():
                yield getattr(member, "fget", None) or member


def places_without_entry(found: Sequence[Entry]) -> list[str]:
    """Places of the papers of which nothing is said."""
    there = {(entry.paper, entry.place) for entry in found}
    return [
        f"{paper.key}, {place}"
        for key, paper in PAPERS.items()
        for place in paper.results
        if (key, place) not in there
    ]


def out_of_order(found: Sequence[Entry]) -> list[str]:
    """Entries at places that do not exist, or whose first entry comes too late.

    More of what a section says may stand between the results that it holds.
    """
    wrong: list[str] = []
    for key, paper in PAPERS.items():
        of_paper = {one.place: one for one in reversed(found) if one.paper == key}
        places = list(dict.fromkeys(one.place for one in found if one.paper == key))
        expected = [place for place in paper.results if place in of_paper]
        if places != expected:
            wrong += [
                str(of_paper[place])
                for place, other in zip_longest(places, expected)
                if place != other and place is not None
            ]
    return wrong


def faults(entry: Entry) -> list[str]:
    """What an entry lacks, and what it names that does not exist."""
    wrong: list[str] = []
    there = entry.code or entry.command
    if not (there or entry.why):
        wrong.append("has nothing, and does not say why")
    if there and entry.why:
        wrong.append("has something, and says why it has nothing")
    if there and not entry.test:
        wrong.append("has no test")
    if there and not entry.page:
        wrong.append("has no page")
    for names, check in (
        (entry.code, _has_code),
        (entry.command, _has_command),
        (entry.test, _has_test),
        (entry.page, _has_page),
    ):
        wrong += [f"{name} does not exist" for name in names if not check(name)]
    return [f"{entry}: {one}" for one in wrong]


def _has_code(name: str) -> bool:
    """Whether a module below `everyformer` has that attribute."""
    thing: Any = everyformer
    place = "everyformer"
    for part in name.split("."):
        place = f"{place}.{part}"
        try:
            thing = importlib.import_module(place)
        except ModuleNotFoundError:
            if not hasattr(thing, part):
                return False
            thing = getattr(thing, part)
    return True


def _has_command(text: str) -> bool:
    """Whether a command, what it is about and its options exist, or a script."""
    program, *words = text.split()
    if program == "python":
        return (ROOT / words[0]).is_file()
    if program != "everyformer" or words[0] not in COMMANDS:
        return False
    command, *rest = words
    about = {"reproduce": EXPERIMENTS, "bench": THEMES}.get(command)
    if about is not None and rest[0] not in about:
        return False
    shown = (SNAPSHOTS / f"{command}.txt").read_text()
    return all(word in shown for word in rest if word.startswith("--"))


def _has_test(name: str) -> bool:
    """Whether a file of tests has that function, perhaps in a class."""
    path, *parts = name.split("::")
    file = ROOT / "tests" / path
    if not (file.is_file() and parts):
        return False
    body: Any = _parsed(file).body
    for part in parts:
        inside = [one for one in body if getattr(one, "name", None) == part]
        if not inside:
            return False
        body = inside[0].body
    return True


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _has_page(name: str) -> bool:
    """Whether a page has that heading."""
    path, _, anchor = name.partition("#")
    file = ROOT / "docs" / path
    return file.is_file() and (not anchor or anchor in _anchors(file))


@cache
def _anchors(file: Path) -> set[str]:
    """Headings as they stand in links: lower case, hyphens, no punctuation."""
    headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def papers_page(found: Sequence[Entry]) -> str:
    """The page."""
    lost = sum(bool(entry.why) for entry in found)
    counts = (
        f"{len(found)} entries: {len(found) - lost} with code or a command and its tests, "
        f"{lost} with the reason why they have neither."
    )
    parts = [HEAD.format(counts=counts)]
    for key, paper in PAPERS.items():
        parts.append(f"## {paper.key}\n")
        parts.append(f"{_told(paper)}\n")
        if key in ABOUT:
            parts.append(ABOUT[key])
        rows = [_row(entry) for entry in found if entry.paper == key]
        parts.append(
            "\n".join(
                ["| place | what it says | here | tests | pages |", "|---" * 5 + "|", *rows]
            )
            + "\n"
        )
    return "\n".join(parts)


def _told(paper: Paper) -> str:
    return f"{paper.authors}, *{paper.title}*, {paper.venue}."


def _row(entry: Entry) -> str:
    """An entry as a line of the table."""
    here = [f"`{name}`" for name in (*entry.code, *entry.command)]
    cells = (
        entry.place,
        entry.says,
        "; ".join([", ".join(here)] * bool(here) + [entry.note] * bool(entry.note))
        or f"*Nothing:* {entry.why}",
        ", ".join(f"`{name}`" for name in entry.test),
        ", ".join(f"[{name.partition('#')[0]}]({name})" for name in entry.page),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def current_page() -> str:
    """The page of the entries that are there now."""
    return papers_page(entries(SOURCE.read_text(), marked_code()))


if __name__ == "__main__":
    PAGE.write_text(current_page())
