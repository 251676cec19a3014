"""Texts of whole words: WikiText's own files, and Wikipedia brought into their form.

A line of WikiText is a paragraph or a heading, its words between spaces; `<eos>` stands at
the end of every line, blank ones included. An article begins with ` = Title = ` between
blank lines. The pack of a text has for each split `SPLIT` (token ids, one article after the
other) and `SPLIT_articles` (int32), where each begins.
"""

import base64
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.certify.shards import map_shards
from everyformer.data.packs.enwiki import SHARD, Shard, shards, texts
from everyformer.data.packs.reading import EOS, UNK
from everyformer.data.packs.words import Vocabulary, plain, read_lines
from everyformer.data.randomness import SPLITS
from everyformer.errors import FileFormatError
from everyformer.progress import Progress, no_progress

BYTES_OF_A_WORD = 7
"""More than a word of Wikipedia and its space have on average (5.2)."""


def wikitext_arrays(
    texts: Sequence[Path], vocabulary: Vocabulary
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The arrays of tokenised files: training, validation and test text.

    Raises:
        FileFormatError: If a word is not in the vocabulary, so that these are files of
            another data set.
    """
    arrays: dict[str, np.ndarray] = {}
    counts: dict[str, int] = {}
    kind = np.uint16 if len(vocabulary.words) <= 1 << 16 else np.int32
    for split, path in zip(SPLITS, texts, strict=True):
        lines = read_lines(path)
        _refuse_others(path, lines, vocabulary)
        ids = array("i")
        starts: list[int] = []
        for place, line in enumerate(lines):
            if is_title(line) and not lines[place - 1].strip():
                starts.append(len(ids))
            ids.extend(vocabulary.numbers([*line.split(), EOS]))
        if not starts or starts[0] > 1:
            msg = (
                f"{path} does not begin with an article: ` = Title = ` on a line after a "
                "blank one. Give a file of WikiText, such as wiki.train.tokens."
            )
            raise FileFormatError(msg)
        arrays[split] = np.array(ids, kind)
        arrays[f"{split}_articles"] = np.array([0, *starts[1:]], np.int32)
        counts[f"{split}_tokens"] = len(ids)
        counts[f"{split}_articles"] = len(starts)
        unknown = vocabulary.numbers([UNK])[0]
        counts[f"{split}_unknown"] = ids.count(unknown)
    return arrays, counts


def enwiki_words_arrays(
    paths: list[Path],
    vocabulary: Vocabulary,
    *,
    tokens: int | None = None,
    workers: int = 1,
    work: Path | None = None,
    key: str = "",
    progress: Progress = no_progress,
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Training text from files of articles: `train`, `train_articles`, and counts.

    Args:
        paths: Files of articles, as `enwiki.articles` reads them.
        vocabulary: Every other word becomes `<unk>`.
        tokens: Of the text, at most; whole shards beyond it are not read.
        workers: Processes.
        work: Folder that keeps what is done.
        key: Hash of files and vocabulary.
        progress: Called after each shard.
    """
    given = shards(paths)
    if tokens is not None:
        given = given[: -(-tokens * BYTES_OF_A_WORD // SHARD) + 1]
    results = map_shards(
        _as_words, (vocabulary, given), len(given), what="words",
        workers=workers, work=work, key=f"{key} words", progress=progress,
    )  # fmt: skip
    ids = [np.frombuffer(base64.b64decode(one["ids"]), dtype="<u2") for one in results]
    lengths = np.concatenate([np.array(one["lengths"], np.int64) for one in results])
    train = np.concatenate(ids).astype(np.uint16)
    starts = np.cumsum(lengths) - lengths
    if tokens is not None:
        train = train[:tokens]
        starts = starts[starts < len(train)]
    unknown = vocabulary.numbers([UNK])[0]
    counts = {
        "train_tokens": len(train),
        "train_articles": len(starts),
        "train_unknown": int((train == unknown).sum()),
    }
    return {"train": train, "train_articles": starts.astype(np.int32)}, counts


def _as_words(shared: tuple[Vocabulary, list[Shard]], index: int) -> dict[str, Any]:
    """Token ids of the articles of one shard, as JSON holds them."""
    vocabulary, given = shared
    ids: list[np.ndarray] = []
    for place, text in zip(given[index].articles, texts(given[index]), strict=True):
        _, *lines = [line for line in text.split("\n") if line.strip()]
        told = ["", f"= {plain(place.title)} =", "", *map(plain, lines)]
        found = [one for line in told for one in vocabulary.encoded(line)]
        ids.append(np.array(found, dtype="<u2"))
    return {
        "ids": base64.b64encode(np.concatenate(ids).tobytes()).decode(),
        "lengths": [len(own) for own in ids],
    }


def is_title(line: str) -> bool:
    """Whether a line is the heading of an article, not of a section."""
    found = line.split()
    ends = len(found) > 2 and found[0] == found[-1] == "="
    return ends and found[1] != "=" and found[-2] != "="


def _refuse_others(path: Path, lines: Sequence[str], vocabulary: Vocabulary) -> None:
    known = set(vocabulary.words)
    other = {word for line in lines for word in line.split()} - known
    if other:
        some = ", ".join(repr(word) for word in sorted(other)[:3])
        msg = (
            f"{path} has {len(other):,} words that the vocabulary of {len(known):,} words "
            f"lacks, such as {some}: it is a file of another data set. Give training, "
            "validation and test files of one WikiText."
        )
        raise FileFormatError(msg)
