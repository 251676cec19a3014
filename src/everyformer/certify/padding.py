"""Heads, head coordinates and hidden units of zeros at the end: read as if not there.

A network of T^{h,m,r} whose last heads, coordinates or units are zeros computes what it
computes without them, in real arithmetic and in every float64 run:

    head of zeros         scores 0, values 0, so it adds W_O 0 = 0 whatever the shares are
    coordinate of zeros   adds 0 to every score, and its values are 0
    unit of zeros         sees 0, and writes phi(0) 0 = 0

A sum with more terms that are exactly 0 is, in whatever order float64 adds it, a sum of the
others in some order: it rounds where that one does. Only what is 0 in all layers of a stage
is taken away, and only at the end, so that numbers of heads and units keep their meaning.
"""

import numpy as np

Arrays = dict[str, np.ndarray]


HEAD_AXES = {"W_Q": (1, 2), "b_Q": (1, 2), "W_K": (1, 2), "W_V": (1, 2), "W_O": (1, 3)}
"""The axes of heads and of their coordinates."""


def without_padding(half: str, arrays: Arrays) -> Arrays:
    """The arrays of one half of a stage, without what is 0 at the end of heads and units.

    Args:
        half: "attention" or "feed_forward".
        arrays: Stacked weights by their short names, finite numbers all of them.
    """
    return _heads(arrays) if half == "attention" else _units(arrays)


def _heads(arrays: Arrays) -> Arrays:
    axes = HEAD_AXES | ({"b_V": (1, 2)} if "b_V" in arrays else {})
    h = _used(arrays, {name: at[0] for name, at in axes.items()})
    m = _used(arrays, {name: at[1] for name, at in axes.items()})
    kept = dict(arrays)
    for name, (head, coordinate) in axes.items():
        kept[name] = _first(_first(arrays[name], head, h), coordinate, m)
    if "gain" in arrays:
        kept["gain"] = arrays["gain"][:, :h]
    return kept


def _units(arrays: Arrays) -> Arrays:
    axes = {"W_1": 1, "b_1": 1, "W_2": 2}
    r = _used(arrays, axes)
    kept = {name: _first(arrays[name], axis, r) for name, axis in axes.items()}
    phi = {name: array[:, :r] for name, array in arrays.items() if name.startswith("phi.")}
    return arrays | kept | phi


def _used(arrays: Arrays, axes: dict[str, int]) -> int:
    """How many entries along an axis there are up to the last with a number but 0."""
    some = np.zeros(next(arrays[name].shape[axis] for name, axis in axes.items()), bool)
    for name, axis in axes.items():
        own = np.moveaxis(arrays[name] != 0, axis, 0)
        some |= own.reshape(len(own), -1).any(axis=1)
    return int(np.flatnonzero(some).max(initial=0)) + 1


def _first(array: np.ndarray, axis: int, count: int) -> np.ndarray:
    """The first entries along an axis; the array itself if those are all."""
    if array.shape[axis] == count:
        return array
    return np.ascontiguousarray(np.take(array, range(count), axis=axis))
