"""Pairs of a text and its translation as a pack, with the byte pairs of both languages.

Sources are tables with tabs (Europarl: day, intervention, English, German) or two files
whose lines belong together (Multi30k, newstest). One vocabulary for both languages is
learnt from the training pairs, and lies in the pack. Pairs in which one side is empty, or
longer than `LONGEST` pieces, are left out and counted.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from everyformer.data.packs.bpe import BytePairs, learnt
from everyformer.data.packs.words import read_lines
from everyformer.data.randomness import SPLITS
from everyformer.errors import FileFormatError, InputError
from everyformer.progress import Progress, no_progress

LONGEST = 255
"""Pieces of one side: with the token at its end or beginning, 256."""

NEWS = 3
"""The split of pairs from another domain, which are translated and scored apart."""

KINDS = (*SPLITS, "news")
ARRAYS = ("tokens", "sources", "targets", "splits", "documents", "vocabulary")
VOCABULARY_SIZES = {"europarl-en-de": 16_000, "multi30k-en-": 4000}
"""Pieces, by the name of the recipe."""


class Sentence(NamedTuple):
    """A text, its translation, and the document that both are from."""

    source: str
    target: str
    document: str


Texts = Mapping[int, Sequence[Sentence]]
"""Pairs by the number of their split."""


def table_pairs(path: Path) -> list[Sentence]:
    """The pairs of a table: day, intervention, source, target.

    Raises:
        FileFormatError: If a line has another number of cells.
    """
    found: list[Sentence] = []
    for number, line in enumerate(read_lines(path), 1):
        cells = line.split("\t")
        if len(cells) != 4:
            msg = (
                f"Line {number} of {path} has {len(cells)} cells, not 4: day, "
                "intervention, source and target, with tabs between. Unpack it again."
            )
            raise FileFormatError(msg)
        day, place, source, target = cells
        found.append(Sentence(source, target, f"{day}/{place}"))
    return found


def line_pairs(source: Path, target: Path) -> list[Sentence]:
    """The pairs of two files, line by line; each is its own document.

    Raises:
        FileFormatError: If they have different numbers of lines.
    """
    both = read_lines(source), read_lines(target)
    if len(both[0]) != len(both[1]):
        msg = (
            f"{source} has {len(both[0]):,} lines and {target} {len(both[1]):,}: line k of "
            "one must be the translation of line k of the other. Unpack both again."
        )
        raise FileFormatError(msg)
    name = source.stem
    lines = enumerate(zip(*both, strict=True))
    return [Sentence(a, b, f"{name}/{k}") for k, (a, b) in lines]


def europarl_pairs(files: Sequence[Path]) -> dict[int, list[Sentence]]:
    """Training, validation and test tables, and the two files of newstest."""
    *tables, source, target = files
    found = {split: table_pairs(path) for split, path in enumerate(tables)}
    return found | {NEWS: line_pairs(source, target)}


def aligned_pairs(files: Sequence[Path]) -> dict[int, list[Sentence]]:
    """Source and target of training, of validation and of test, in this order."""
    pairs = zip(files[::2], files[1::2], strict=True)
    return {split: line_pairs(*both) for split, both in enumerate(pairs)}


def translation_arrays(
    texts: Texts,
    size: int,
    *,
    tokens: int | None = None,
    longest: int = LONGEST,
    progress: Progress = no_progress,
) -> tuple[dict[str, np.ndarray], dict[str, int], BytePairs]:
    """The arrays of a pack of translations, its counts, and the vocabulary.

    `tokens` (uint16) holds source and target of every pair one after the other; `sources`
    and `targets` (uint16) their lengths; `splits` (uint8) and `documents` (int32) a number
    for each pair; `vocabulary` (uint8) the byte pairs.

    Args:
        texts: Pairs by split.
        size: Pieces of the vocabulary.
        tokens: Of the training pairs, at most: whole documents in the order of the sha1 of
            their names, so that a part is like the whole. The vocabulary is that of all.
        longest: Pieces of one side.
        progress: Called now and then.

    Raises:
        InputError: If a split has no pair.
    """
    progress("learn byte pairs", 0, 1)
    pairs = learnt(chain.from_iterable(pair[:2] for pair in texts.get(0, ())), size)
    ids: list[np.ndarray] = []
    lengths: list[tuple[int, int]] = []
    splits: list[int] = []
    documents: list[int] = []
    names: dict[str, int] = {}
    counts: dict[str, int] = {}
    for split, own in texts.items():
        progress("tokenise", split, len(texts))
        pieces = pairs.ids([text for pair in own for text in pair[:2]])
        both = [(np.array(a, np.uint16), np.array(next(pieces), np.uint16)) for a in pieces]
        empty = [k for k, (a, b) in enumerate(both) if not (len(a) and len(b))]
        fits = [k for k, (a, b) in enumerate(both) if len(a) and len(b)
                and max(len(a), len(b)) <= longest]  # fmt: skip
        kind = KINDS[split]
        counts[f"{kind}_empty"] = len(empty)
        counts[f"{kind}_too_long"] = len(both) - len(empty) - len(fits)
        if split == 0 and tokens is not None:
            sizes = {k: len(both[k][0]) + len(both[k][1]) for k in fits}
            fits = _part([(k, own[k].document) for k in fits], sizes, tokens)
        if not fits:
            msg = (
                f"No {kind} pair has two sides of 1 to {longest} pieces: {len(own)} were "
                f"given, {len(empty)} with an empty side. Give texts and translations."
            )
            raise InputError(msg)
        for k in fits:
            ids += both[k]
            lengths.append((len(both[k][0]), len(both[k][1])))
            documents.append(names.setdefault(own[k].document, len(names)))
        splits += [split] * len(fits)
        counts[f"{kind}_pairs"] = len(fits)
        counts[f"{kind}_tokens"] = sum(map(sum, lengths[-len(fits) :]))
    sides = np.array(lengths, np.uint16)
    arrays = {
        "tokens": np.concatenate(ids),
        "sources": sides[:, 0],
        "targets": sides[:, 1],
        "splits": np.array(splits, np.uint8),
        "documents": np.array(documents, np.int32),
        "vocabulary": pairs.to_array(),
    }
    return arrays, counts, pairs


def _part(
    named: Sequence[tuple[int, str]], sizes: Mapping[int, int], most: int
) -> list[int]:
    """Pairs of whole documents with at most `most` pieces, in their order."""
    own: dict[str, list[int]] = {}
    for k, document in named:
        own.setdefault(document, []).append(k)
    kept: list[int] = []
    left = most
    for document in sorted(own, key=lambda one: hashlib.sha1(one.encode()).digest()):
        left -= sum(sizes[k] for k in own[document])
        if left < 0:
            break
        kept += own[document]
    return sorted(kept)
