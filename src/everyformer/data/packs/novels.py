"""Whole novels as bytes: text in UTF-8, one novel after the other, a vocabulary of 256.

The pack has for each split `SPLIT` (uint8) and `SPLIT_novels` (int32), where each begins.
Four novels are held out for validation and four for the test; their authors have others in
the training text. Lines end with one byte, and nothing else is changed.
"""

import hashlib
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.data.randomness import SPLITS
from everyformer.errors import FileFormatError

HELD_OUT = {
    "validation": (
        "Doyle_Lost_1912",
        "Forster_View_1908",
        "Hardy_Tess_1891",
        "Woolf_Lighthouse_1927",
    ),
    "test": (
        "Chesterton_Thursday_1908",
        "Conrad_Rover_1923",
        "Gissing_Warburton_1903",
        "Trollope_Warden_1855",
    ),
}
FOLDER = "english-novels/corpus/"
BOM = b"\xef\xbb\xbf"


def novel_arrays(
    archive: Path, tokens: int | None = None
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The arrays of an archive of novels, and counts.

    Args:
        archive: A tar file with `english-novels/corpus/NAME.txt`; nothing is unpacked to
            the disk.
        tokens: Bytes of training text, at most: whole novels, in an order by the hash of
            their names, until the next one would not fit.

    Raises:
        FileFormatError: If novels are missing, or one is not UTF-8.
    """
    novels = _read(archive)
    lost = [name for split in HELD_OUT.values() for name in split if name not in novels]
    if lost:
        msg = (
            f"{archive} lacks {', '.join(lost)} in {FOLDER}, which are held out for "
            "validation and test. Give the archive of all 100 novels."
        )
        raise FileFormatError(msg)
    chosen: dict[str, tuple[str, ...]] = {"train": _training(novels, tokens), **HELD_OUT}
    arrays: dict[str, np.ndarray] = {}
    counts: dict[str, int] = {}
    for split in SPLITS:
        texts = [np.frombuffer(novels[name], np.uint8) for name in chosen[split]]
        sizes = np.array([len(text) for text in texts], np.int64)
        arrays[split] = np.concatenate([*texts, np.empty(0, np.uint8)])
        arrays[f"{split}_novels"] = (np.cumsum(sizes) - sizes).astype(np.int32)
        counts[f"{split}_bytes"] = len(arrays[split])
        counts[f"{split}_novels"] = len(texts)
    return arrays, counts


def bytes_tokeniser() -> dict[str, Any]:
    """What token ids mean: each byte itself, and none is special."""
    digest = hashlib.sha256(bytes(range(256))).hexdigest()
    return {"sha256": digest, "vocabulary": 256, "specials": {}}


def _read(archive: Path) -> dict[str, bytes]:
    """Every novel by its name, with lines that end with one byte."""
    found: dict[str, bytes] = {}
    with tarfile.open(archive) as files:
        for member in files:
            name = member.name
            if not (name.startswith(FOLDER) and name.endswith(".txt")):
                continue
            file = files.extractfile(member)
            if file is None:
                continue
            text = file.read().removeprefix(BOM).replace(b"\r\n", b"\n")
            try:
                text.decode()
            except UnicodeDecodeError as error:
                raise FileFormatError(f"{name} in {archive} is not UTF-8.") from error
            found[name.removeprefix(FOLDER).removesuffix(".txt")] = text
    return found


def _training(novels: dict[str, bytes], tokens: int | None) -> tuple[str, ...]:
    held = {name for split in HELD_OUT.values() for name in split}
    names = sorted(
        (name for name in novels if name not in held),
        key=lambda name: hashlib.sha256(name.encode()).digest(),
    )
    total = 0
    for number, name in enumerate(names):
        total += len(novels[name])
        if tokens is not None and total > tokens:
            return tuple(names[:number])
    return tuple(names)
