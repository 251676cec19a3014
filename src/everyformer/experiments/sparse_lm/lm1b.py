"""The One Billion Word benchmark, from the user's own files: what the paper read."""

from pathlib import Path

import numpy as np

from everyformer.data.packs.pack import Pack, pack_of_files
from everyformer.data.packs.wordpiece import WordPiece, read_vocabulary
from everyformer.errors import TrainingError

VOCABULARY = "vocab.txt"
TRAINING = "training-monolingual.tokenized.shuffled/news.en-*-of-00100"
HELD_OUT = "heldout-monolingual.tokenized.shuffled/news.en.heldout-0000{}-of-00050"
PLACES = {"validation": HELD_OUT.format(1), "test": HELD_OUT.format(0)}
AT_ONCE = 10_000


def lm1b(data: Path | None) -> tuple[Pack, dict[str, int]]:
    """LM1B in WordPieces, a sentence a document; and the words of its held-out texts.

    The paper's own subwords are not known. Reading takes an hour, and 8 GiB of memory.

    Raises:
        TrainingError: If files are missing.
        FileFormatError: If the vocabulary is not one.
    """
    found = {} if data is None else {split: data / name for split, name in PLACES.items()}
    training = [] if data is None else sorted(data.glob(TRAINING))
    there = data is not None and (data / VOCABULARY).is_file()
    if data is None or not (
        there and training and all(p.is_file() for p in found.values())
    ):
        where = "no folder was given" if data is None else f"{data} does not hold all of it"
        msg = (
            f"--size paper of sparse-lm reads LM1B ({TRAINING}, "
            f"{', '.join(PLACES.values())}) and a WordPiece vocabulary ({VOCABULARY}), "
            f"and {where}. Give the folder of these files with --data."
        )
        raise TrainingError(msg)
    wordpiece = read_vocabulary(data / VOCABULARY, sha256=None)
    arrays: dict[str, np.ndarray] = {}
    counts: dict[str, int] = {}
    for split, paths in {"train": training, **{s: [p] for s, p in found.items()}}.items():
        ids, starts, words = _tokenised(paths, wordpiece)
        arrays |= {split: ids, f"{split}_articles": starts}
        counts |= {f"{split}_tokens": len(ids), f"{split}_words": words}
    licence = "as the benchmark's (Chelba et al. 2013)"
    used = (data / VOCABULARY, *found.values())
    pack = pack_of_files("lm1b", licence, wordpiece.describe(), used, arrays, counts)
    return pack, {split: counts[f"{split}_words"] for split in found}


def _tokenised(
    paths: list[Path], wordpiece: WordPiece
) -> tuple[np.ndarray, np.ndarray, int]:
    """Token ids, where each sentence begins, and the number of words."""
    ids: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    words = 0
    for path in paths:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line]
        words += sum(len(line.split()) for line in lines)
        for start in range(0, len(lines), AT_ONCE):
            each = [one for one in wordpiece.ids(lines[start : start + AT_ONCE]) if one]
            ids.append(np.array([token for one in each for token in one], np.uint16))
            lengths.append(np.array([len(one) for one in each], np.int64))
    sizes = np.concatenate(lengths)
    return np.concatenate(ids), (np.cumsum(sizes) - sizes).astype(np.int32), words
