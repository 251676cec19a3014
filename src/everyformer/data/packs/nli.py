"""Pairs of sentences and what follows from the first: files of MNLI and SNLI as a pack.

The files are tables with tabs and a heading; quotes are text. 2,000 training pairs of MNLI
are for choosing settings: whole premises in the order of their sha1, so that no premise of
theirs is trained on. Where the last premise has more pairs than fit, the rest are left out.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from everyformer.data.packs.wordpiece import WordPiece
from everyformer.data.randomness import SPLITS
from everyformer.errors import FileFormatError
from everyformer.progress import Progress, no_progress

CLASSES = ("entailment", "neutral", "contradiction")
HELD_OUT = 2000
LEFT_OUT = 3
"""The split of a pair that is in none."""

AT_ONCE = 2000


def rows(path: Path) -> Iterator[tuple[str, str, int]]:
    """Premise, hypothesis and class of each pair.

    Raises:
        FileFormatError: If the table is not one of pairs.
    """
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    heading = lines[0].split("\t")
    wanted = ("sentence1", "sentence2", "gold_label")
    if not set(wanted) <= set(heading):
        msg = f"{path} begins with {heading[:6]}, not with a heading that has {wanted}."
        raise FileFormatError(f"{msg} Unpack it again.")
    places = [heading.index(name) for name in wanted]
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("\t")
        if len(cells) != len(heading) or cells[places[2]] not in CLASSES:
            msg = (
                f"Line {number} of {path} has {len(cells)} cells, or its label is not one "
                f"of {', '.join(CLASSES)}. Unpack the file again."
            )
            raise FileFormatError(msg)
        premise, hypothesis, label = (cells[place] for place in places)
        yield premise, hypothesis, CLASSES.index(label)


def held_out(premises: Sequence[str], count: int = HELD_OUT) -> np.ndarray:
    """The split of each training pair: train, validation, or left out."""
    own: dict[str, list[int]] = {}
    for number, premise in enumerate(premises):
        own.setdefault(premise, []).append(number)
    splits = np.full(len(premises), SPLITS.index("train"), np.uint8)
    left = count
    for premise in sorted(own, key=lambda one: hashlib.sha1(one.encode()).digest()):
        if left == 0:
            break
        numbers = own[premise]
        splits[numbers[left:]] = LEFT_OUT
        splits[numbers[:left]] = SPLITS.index("validation")
        left -= min(left, len(numbers))
    return splits


def tokenised(
    pairs: Sequence[tuple[str, str, int]],
    wordpiece: WordPiece,
    progress: Progress = no_progress,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids of the first and second text of all pairs, and the lengths of both (uint16)."""
    ids: list[list[int]] = []
    for start in range(0, len(pairs), AT_ONCE):
        progress("tokenise", start, len(pairs))
        some = pairs[start : start + AT_ONCE]
        ids += wordpiece.ids([text for pair in some for text in pair[:2]])
    tokens = np.array([one for text in ids for one in text], np.uint16)
    lengths = np.array([len(text) for text in ids], np.uint16)
    return tokens, lengths[::2], lengths[1::2]


def nli_arrays(
    mnli: Path,
    snli: Path,
    dev: Path,
    wordpiece: WordPiece,
    *,
    validation: int = HELD_OUT,
    progress: Progress = no_progress,
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The arrays of a pack of pairs, and its counts.

    `tokens` (uint16) holds premise and hypothesis of every pair one after the other;
    `premises` and `hypotheses` (uint16) their lengths; `labels` and `splits` (uint8) a
    number for each pair. MNLI comes first, then SNLI, then MNLI's matched development set.
    """
    tables = [list(rows(path)) for path in (mnli, snli, dev)]
    pairs = [pair for table in tables for pair in table]
    splits = np.concatenate([
        held_out([pair[0] for pair in tables[0]], validation),
        np.full(len(tables[1]), SPLITS.index("train"), np.uint8),
        np.full(len(tables[2]), SPLITS.index("test"), np.uint8),
    ])  # fmt: skip
    tokens, premises, hypotheses = tokenised(pairs, wordpiece, progress)
    arrays = {
        "tokens": tokens,
        "premises": premises,
        "hypotheses": hypotheses,
        "labels": np.array([pair[2] for pair in pairs], np.uint8),
        "splits": splits,
    }
    counts = {f"{split}_pairs": int((splits == k).sum()) for k, split in enumerate(SPLITS)}
    names = ("mnli_train", "snli", "mnli_dev_matched")
    counts |= {name: len(table) for name, table in zip(names, tables, strict=True)}
    return arrays, counts | {"left_out_pairs": int((splits == LEFT_OUT).sum())}
