"""English Wikipedia as WordPieces: articles in their order, split by the hash of the title.

A file holds articles as WikiText has them: ` = Title = ` on a line between blank lines,
then one paragraph on each line. An article is training, validation or test text by sha1 of
its title modulo 1000 (0-4 validation, 5-9 test). Titles are tokens like any others; nothing
marks where an article ends but the array of their starts.
"""

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from everyformer.certify.shards import map_shards
from everyformer.data.packs.wordpiece import WordPiece
from everyformer.data.randomness import SPLITS, Split
from everyformer.errors import FileFormatError
from everyformer.progress import Progress, no_progress

OVERLAPPING = frozenset({"The New Yorker", "Armour"})
"""Articles that share most text with articles of WikiText's validation and test sets."""

TITLE = re.compile(rb"(?:\A|\n\n) = ([^\n]+) = \n\n")
SHARD = 1 << 22
"""Bytes of text, at least, that are tokenised at once."""


class Place(NamedTuple):
    """Where an article lies in its file, in bytes, title included."""

    title: str
    start: int
    stop: int


@dataclass(frozen=True)
class Shard:
    """Articles of one file that are tokenised together; workers are given it."""

    path: Path
    articles: tuple[Place, ...]


def split_of(title: str) -> Split:
    """Which text an article belongs to.

    Example:
        >>> split_of("Crop circle")
        'train'
    """
    number = int(hashlib.sha1(title.encode()).hexdigest(), 16) % 1000
    return "validation" if number < 5 else "test" if number < 10 else "train"


def articles(path: Path) -> Iterator[Place]:
    """The articles of a file in their order.

    Raises:
        FileFormatError: If it does not begin with an article, or is not UTF-8.
    """
    text = path.read_bytes()
    found = list(TITLE.finditer(text))
    if not found or found[0].start() != 0:
        msg = (
            f"{path} does not begin with an article. It should hold ` = Title = ` between "
            "blank lines, then a paragraph on each line."
        )
        raise FileFormatError(msg)
    stops = [match.start() for match in found[1:]] + [len(text)]
    for match, stop in zip(found, stops, strict=True):
        try:
            title = match[1].decode()
        except UnicodeDecodeError as error:
            msg = f"{path} is not UTF-8 at byte {match.start()}. Unpack it again."
            raise FileFormatError(msg) from error
        yield Place(title, match.start(), stop)


def shards(paths: list[Path], dropped: frozenset[str] = OVERLAPPING) -> list[Shard]:
    """The articles of some files, without those that are dropped, in pieces of some MiB."""
    found: list[Shard] = []
    for path in paths:
        held: list[Place] = []
        for place in articles(path):
            if place.title not in dropped:
                held.append(place)
            if held and held[-1].stop - held[0].start >= SHARD:
                found.append(Shard(path, tuple(held)))
                held = []
        if held:
            found.append(Shard(path, tuple(held)))
    return found


def texts(shard: Shard) -> Iterator[str]:
    """The articles of a shard, titles included.

    Raises:
        FileFormatError: If one of them is not UTF-8.
    """
    first, last = shard.articles[0].start, shard.articles[-1].stop
    with shard.path.open("rb") as file:
        file.seek(first)
        raw = file.read(last - first)
    for title, start, stop in shard.articles:
        try:
            yield raw[start - first : stop - first].decode()
        except UnicodeDecodeError as error:
            msg = f"The article {title!r} in {shard.path} is not UTF-8. Unpack it again."
            raise FileFormatError(msg) from error


def enwiki_arrays(
    paths: list[Path],
    wordpiece: WordPiece,
    *,
    tokens: int | None = None,
    workers: int = 1,
    work: Path | None = None,
    key: str = "",
    progress: Progress = no_progress,
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The arrays of a pack of articles, and its counts.

    For each split `SPLIT` (uint16), all its articles one after the other, and
    `SPLIT_articles` (int32), where each begins.

    Args:
        paths: Files of articles.
        wordpiece: The vocabulary.
        tokens: Of the whole pack, at most. Training text beyond it is left out; validation
            and test texts are those of all articles always.
        workers: Processes.
        work: Folder that keeps what is tokenised.
        key: Hash of files and vocabulary.
        progress: Called after each shard.
    """
    given = shards(paths)
    results = map_shards(
        _tokenised, (wordpiece, given), len(given), what="tokenise",
        workers=workers, work=work, key=key, progress=progress,
    )  # fmt: skip
    held: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
    words = paragraphs = 0
    for result in results:
        ids = np.frombuffer(base64.b64decode(result["ids"]), dtype="<u2")
        cuts = np.cumsum(result["lengths"])[:-1]
        for split, own in zip(result["splits"], np.split(ids, cuts), strict=True):
            held[split].append(own)
        words += result["words"]
        paragraphs += result["paragraphs"]
    arrays: dict[str, np.ndarray] = {}
    for split, own in held.items():
        starts = np.cumsum([0, *map(len, own)])[:-1]
        arrays[split] = np.concatenate([*own, np.empty(0, np.uint16)]).astype(np.uint16)
        arrays[f"{split}_articles"] = starts.astype(np.int32)
    whole = sum(len(arrays[split]) for split in SPLITS)
    if tokens is not None and tokens < whole:
        most = max(0, tokens - len(arrays["validation"]) - len(arrays["test"]))
        starts = arrays["train_articles"]
        arrays["train"] = arrays["train"][:most]
        arrays["train_articles"] = starts[starts < most]
    counts = {f"{split}_tokens": len(arrays[split]) for split in SPLITS}
    counts |= {f"{split}_articles": len(arrays[f"{split}_articles"]) for split in SPLITS}
    counts |= {"source_tokens": whole, "source_words": words}
    return arrays, counts | {"source_paragraphs": paragraphs}


def _tokenised(shared: tuple[WordPiece, list[Shard]], index: int) -> dict[str, Any]:
    """Token ids of the articles of one shard, as JSON holds them."""
    wordpiece, given = shared
    ids: list[np.ndarray] = []
    words = paragraphs = 0
    for text in texts(given[index]):
        lines = [line for line in text.split("\n") if line.strip()]
        words += sum(len(line.split()) for line in lines)
        paragraphs += len(lines)
        found = [one for line in wordpiece.ids(lines) for one in line]
        ids.append(np.array(found, dtype="<u2"))
    return {
        "ids": base64.b64encode(np.concatenate(ids).tobytes()).decode(),
        "lengths": [len(own) for own in ids],
        "splits": [split_of(place.title) for place in given[index].articles],
        "words": words,
        "paragraphs": paragraphs,
    }
