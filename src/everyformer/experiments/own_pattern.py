"""A pattern of the user's as an arm of an experiment: masks (.npy) or a pattern (.json)."""

from pathlib import Path

import numpy as np

from everyformer.errors import FileFormatError, TrainingError
from everyformer.files.npy_file import read_npy
from everyformer.files.strict_json import read_json
from everyformer.patterns import Pattern, from_masks


def read_own_pattern(path: Path, n: int) -> Pattern:
    """The pattern of a file, for n tokens; nothing in the file is run.

    Args:
        path: One mask (n, n) or several (p, n, n) of booleans, True where the token of a
            row attends to that of a column; or what `Pattern.to_json` wrote.
        n: Tokens of a window.

    Raises:
        TrainingError: If there is no such file, or its pattern is for another n.
        FileFormatError: If it does not hold a pattern.
    """
    if path.suffix not in (".npy", ".json") or not path.is_file():
        msg = (
            f"pattern={str(path)!r} is not a file of masks (.npy) or of a pattern (.json). "
            "Give the path of one."
        )
        raise TrainingError(msg)
    try:
        found = _masks(path) if path.suffix == ".npy" else _described(path)
    except (ValueError, OSError) as error:
        msg = f"{path} does not hold a pattern ({error}). Write it anew."
        raise FileFormatError(msg) from error
    if found.n != n:
        msg = (
            f"{path} holds a pattern for {found.n} tokens, and windows have {n}: which "
            f"tokens it would connect is not said. Give a pattern for {n} tokens."
        )
        raise TrainingError(msg)
    return Pattern(path.stem, found.parts)


def _masks(path: Path) -> Pattern:
    masks = read_npy(path)
    if masks.dtype != np.bool_ or masks.ndim not in (2, 3):
        raise ValueError(f"an array of {masks.dtype} of shape {masks.shape}")
    return from_masks(masks)


def _described(path: Path) -> Pattern:
    return Pattern.from_json(read_json(path.read_bytes()))
