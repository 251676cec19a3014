"""Small images with classes: scikit-learn's digits, a file of the user's, or CIFAR-10.

digits      1,797 images of 8 x 8 pixels from 0 to 16; needs scikit-learn, or the file
that `python -m everyformer.experiments.urpe_images.data digits.npz` wrote
FILE.npz    arrays `images` (N, side, side) or (N, side, side, channels) of whole
numbers from 0 to `levels`, and `labels` (N,)
DIR         the binary version of CIFAR-10: data_batch_1.bin .. test_batch.bin
"""

import hashlib
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.data.randomness import SPLITS, Split
from everyformer.errors import TrainingError

CIFAR = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5")
ROW = 1 + 3 * 32 * 32
HELD_OUT = 5_000
LEAST = 20
"""Images of a file: each split has two or more."""

SHARES = (0.7, 0.8)
"""Where validation and test begin among images in a drawn order."""


@dataclass(frozen=True)
class Images:
    """Images by split.

    Attributes:
        name: With a hash.
        pixels: (N, side, side, channels), from 0 to levels.
        labels: (N,), from 0 to classes - 1.
        levels: The largest number of a pixel.
        classes: How many there are.
    """

    name: str
    pixels: Mapping[Split, np.ndarray]
    labels: Mapping[Split, np.ndarray]
    levels: int
    classes: int


def images_of(data: Path | None) -> Images:
    """The images of a file or folder; without one, the digits of scikit-learn.

    Raises:
        TrainingError: If they are not there, or no images; what would be.
    """
    if data is None:
        pixels, labels = digits()
        return _split("digits", pixels, labels, 16)
    if data.is_dir():
        return _cifar(data)
    if not data.is_file():
        msg = f"--data {data} is not there. Give a file .npz of images, or CIFAR's folder."
        raise TrainingError(msg)
    pixels, labels, levels = _stored(data)
    return _split(data.stem, pixels, labels, levels)


def digits() -> tuple[np.ndarray, np.ndarray]:
    """The digits of scikit-learn.

    Raises:
        TrainingError: If it is not installed.
    """
    if find_spec("sklearn") is None:
        msg = (
            "The digits come with scikit-learn, which is not installed. Install it, pip "
            "install 'everyformer[images]', or give images with --data FILE.npz."
        )
        raise TrainingError(msg)
    found: Any = import_module("sklearn.datasets").load_digits()
    return found.images.astype(np.uint8), found.target.astype(np.int64)


def bars(count: int = 120, side: int = 8) -> Images:
    """Horizontal and vertical bars at all places: what a smoke test needs, and no file."""
    draw = np.random.default_rng(0)
    pixels = np.zeros((count, side, side), np.uint8)
    labels = draw.integers(0, 2, count)
    for image, label in zip(pixels, labels, strict=True):
        bar = image if label else image.T
        bar[draw.integers(0, side)] = 16
    return _split("bars", pixels, labels, 16)


def _stored(path: Path) -> tuple[np.ndarray, np.ndarray, int]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            pixels, labels = stored["images"], stored["labels"]
            levels = int(stored["levels"]) if "levels" in stored else int(pixels.max())
    except (
        ValueError,
        TypeError,
        OSError,
        KeyError,
        EOFError,
        zipfile.BadZipFile,
    ) as error:
        msg = (
            f"{path} cannot be read as images ({error}). It needs the arrays images, (N, "
            "side, side) or (N, side, side, channels), and labels, (N,)."
        )
        raise TrainingError(msg) from error
    whole = pixels.dtype.kind in "ui" and labels.dtype.kind in "ui"
    fits = pixels.ndim in (3, 4) and len(pixels) == len(labels) and len(labels) >= LEAST
    square = pixels.ndim > 2 and pixels.shape[1] == pixels.shape[2]
    if not (whole and fits and square and pixels.min() >= 0 and labels.min() >= 0):
        msg = (
            f"{path} has images of shape {pixels.shape} ({pixels.dtype}) and labels of "
            f"shape {labels.shape} ({labels.dtype}). Give {LEAST} or more square images "
            "of whole numbers from 0 on, (N, side, side) or (N, side, side, channels), and "
            "as many labels from 0 on."
        )
        raise TrainingError(msg)
    if pixels.max() > max(1, levels) or labels.max() >= len(labels):
        msg = (
            f"{path} has pixels up to {pixels.max()} with levels={levels}, and labels up "
            f"to {labels.max()} for {len(labels)} images. Pixels go up to levels, and "
            "classes are numbered from 0 on, fewer than images."
        )
        raise TrainingError(msg)
    return pixels, labels, max(1, levels)


def _split(name: str, pixels: np.ndarray, labels: np.ndarray, levels: int) -> Images:
    """All images in an order that depends on their number alone, in three parts."""
    order = np.random.default_rng(0).permutation(len(pixels))
    cuts = [int(share * len(pixels)) for share in SHARES]
    parts = dict(zip(SPLITS, np.split(order, cuts), strict=True))
    whole = pixels if pixels.ndim == 4 else pixels[..., None]
    digest = hashlib.sha256(np.ascontiguousarray(whole, np.int64).tobytes())
    digest.update(np.ascontiguousarray(labels, np.int64).tobytes())
    return Images(
        f"{name} {digest.hexdigest()[:12]}",
        {split: whole[part] for split, part in parts.items()},
        {split: labels[part].astype(np.int64) for split, part in parts.items()},
        levels,
        int(labels.max()) + 1,
    )


def _cifar(folder: Path) -> Images:
    """The binary version: a byte of label and 3 x 32 x 32 bytes in each row."""
    paths = [folder / f"{name}.bin" for name in (*CIFAR, "test_batch")]
    missing = [path.name for path in paths if not path.is_file()]
    sizes = [path.stat().st_size for path in paths if path.is_file()]
    if missing or any(size % ROW for size in sizes):
        told = f"lacks {', '.join(missing)}" if missing else f"has files of {sizes} bytes"
        msg = (
            f"{folder} is not the binary version of CIFAR-10: it {told}, and rows have "
            f"{ROW} bytes. Give the folder cifar-10-batches-bin."
        )
        raise TrainingError(msg)
    rows = [np.fromfile(path, np.uint8).reshape(-1, ROW) for path in paths]
    if any(len(part) < 2 or part[:, 0].max() > 9 for part in rows):
        msg = (
            f"{folder} has files of {[len(part) for part in rows]} rows, or a label above "
            "9. That is not CIFAR-10; CIFAR-100 has two labels in a row, and is not read."
        )
        raise TrainingError(msg)
    train = np.concatenate(rows[:-1])
    held = min(HELD_OUT, len(train) // 10)
    parts = dict(zip(SPLITS, (train[held:], train[:held], rows[-1]), strict=True))
    digest = hashlib.sha256(b"".join(part.tobytes() for part in parts.values()))
    return Images(
        f"cifar-10 {digest.hexdigest()[:12]}",
        {
            s: p[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            for s, p in parts.items()
        },
        {split: part[:, 0].astype(np.int64) for split, part in parts.items()},
        255,
        10,
    )


if __name__ == "__main__":
    pixels, labels = digits()
    np.savez_compressed(Path(sys.argv[1]), images=pixels, labels=labels, levels=16)
