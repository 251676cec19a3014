"""How much of a held-out text stands in a training text: runs of 13 words that both have.

Words are letters and digits in lower case; what lies between them does not count, so text
is compared with text in WikiText's form. Runs do not go from one article to the next, nor
over a word that a vocabulary has hidden (`<unk>`).
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.certify.shards import map_shards
from everyformer.data.packs.enwiki import OVERLAPPING, Shard, shards, texts
from everyformer.data.packs.reading import UNK
from everyformer.data.packs.wikitext import is_title
from everyformer.data.packs.words import read_lines
from everyformer.errors import FileFormatError
from everyformer.progress import Progress, no_progress

RUN = 13
"""Words of a run."""

WORD = re.compile(r"[^\W_]+")
FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that no power of it vanishes modulo 2^64."""


@dataclass(frozen=True)
class Shared:
    """A held-out article and the training text that has part of it.

    Attributes:
        title: Of the held-out article.
        runs: That it has.
        found: How many of them stand in the training text.
        within: The training article that has most of them; "" if none has any.
    """

    title: str
    runs: int
    found: int
    within: str

    @property
    def share(self) -> float:
        """Of its runs."""
        return self.found / max(1, self.runs)


def overlap(
    held_out: Path,
    training: Sequence[Path],
    *,
    dropped: frozenset[str] = OVERLAPPING,
    workers: int = 1,
    progress: Progress = no_progress,
) -> list[Shared]:
    """Every article of a held-out text, those with the largest share first.

    Args:
        held_out: A file of WikiText, such as wiki.test.tokens.
        training: Files of articles, as `enwiki.articles` reads them.
        dropped: Titles of training articles that do not count.
        workers: Processes.
        progress: Called after each piece of training text.

    Raises:
        FileFormatError: If the held-out text has no run of 13 words.
    """
    titles, runs = zip(*_held_out(held_out), strict=True)
    owner = np.repeat(np.arange(len(runs)), [len(own) for own in runs])
    every = np.concatenate(runs)
    if not len(every):
        msg = f"{held_out} has no {RUN} words in a row, so there is nothing to look for."
        raise FileFormatError(f"{msg} Give a file of WikiText, such as wiki.test.tokens.")
    wanted = np.unique(every)
    given = shards(list(training), dropped)
    results = map_shards(
        _met, (wanted, given), len(given), what="overlap", workers=workers,
        progress=progress,
    )  # fmt: skip
    places = np.searchsorted(wanted, every)
    met = np.zeros(len(wanted), bool)
    most: list[tuple[int, str]] = [(0, "")] * len(titles)
    for name, found in (pair for one in results for pair in one["met"]):
        here = np.zeros(len(wanted), bool)
        here[found] = True
        met |= here
        for number, count in enumerate(np.bincount(owner, here[places], len(titles))):
            most[number] = max(most[number], (int(count), name), key=lambda one: one[0])
    total = np.bincount(owner, met[places], len(titles)).astype(int)
    found = [
        Shared(title, len(own), int(count), name)
        for title, own, count, (_, name) in zip(titles, runs, total, most, strict=True)
    ]
    return sorted(found, key=lambda one: -one.share)


def _held_out(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """The articles of a file of WikiText: title and runs."""
    lines = read_lines(path)
    starts = [k for k, line in enumerate(lines) if is_title(line)] or [0]
    known: dict[str, int] = {}
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        text = "\n".join(lines[start:stop])
        parts = [runs_of(part, known) for part in text.split(UNK)]
        yield lines[start].strip(" ="), np.concatenate(parts)


def _met(shared: tuple[np.ndarray, list[Shard]], index: int) -> dict[str, Any]:
    """Which of the wanted runs the articles of one shard have, by their places."""
    wanted, given = shared
    known: dict[str, int] = {}
    found: list[tuple[str, list[int]]] = []
    for place, text in zip(given[index].articles, texts(given[index]), strict=True):
        own = runs_of(text, known)
        at = np.minimum(np.searchsorted(wanted, own), len(wanted) - 1)
        here = np.unique(at[wanted[at] == own])
        if len(here):
            found.append((place.title, here.tolist()))
    return {"met": found}


def runs_of(text: str, known: dict[str, int]) -> np.ndarray:
    """The runs of a text as numbers of 64 bits: sum_k h(word_k) a^k modulo 2^64.

    With 5e7 runs against 5e5, two different ones agree with probability 2e-6.

    Args:
        text: The text.
        known: Hashes of words, which grows.
    """
    found = WORD.findall(text.lower())
    for word in found:
        if word not in known:
            digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
            known[word] = int.from_bytes(digest)
    hashes = np.array([known[word] for word in found], np.uint64)
    count = max(0, len(hashes) - RUN + 1)
    total, power = np.zeros(count, np.uint64), np.uint64(1)
    with np.errstate(over="ignore"):
        for k in range(RUN):
            total += hashes[k : k + count] * power
            power = power * FACTOR
    return total
