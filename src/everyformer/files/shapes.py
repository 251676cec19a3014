"""Which shapes the arrays of a network have, and what else its numbers must satisfy."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
HALVES = {
    "attention": ("W_Q", "b_Q", "W_K", "W_V", "W_O"),
    "feed_forward": ("W_1", "b_1", "W_2", "b_2"),
}
PHI = tuple(f"phi.{name}" for name in ("breaks", "closed", "slopes", "intercepts"))
PHI_SIZES = (2, 2, 3, 3)
AROUND = ("registers.W_in", "registers.start", "registers.W_out")
PREFIX = "registers.prefix"


def check_shapes(description: dict[str, Any], arrays: Arrays) -> None:
    """Refuse arrays that are not a network of the architecture described.

    Args:
        description: As `check_description` lets it pass.
        arrays: As `check_kinds` lets them pass.

    Raises:
        ValueError: Naming the first stage that is wrong, with its shapes.
    """
    spec = description["architecture"]
    n, d = spec["seq_len"], spec["d_model"]
    width = _check_registers(spec, arrays)
    positions = arrays.get("positions")
    if positions is not None and positions.shape != (n, d):
        msg = f"positions have shape {positions.shape}, not {(n, d)}"
        raise ValueError(msg)
    if positions is not None and "width" in spec:
        msg = "there are both positions and registers, whose start has them"
        raise ValueError(msg)
    names = [name for name, *_ in description["stages"]]
    if not names:
        msg = "there are no stages"
        raise ValueError(msg)
    stages = stages_of(len(names), arrays)
    known = sum(len(own) for halves in stages for own in halves.values())
    if known + sum(not name.startswith("stages.") for name in arrays) != len(arrays):
        msg = "there are arrays that belong to no stage"
        raise ValueError(msg)
    exact = {
        array.dtype == object
        for halves in stages
        for own in halves.values()
        for array in own.values()
        if array.dtype != bool
    }
    if len(exact) > 1:
        msg = "float64 and rationals are mixed"
        raise ValueError(msg)
    prefix = spec.get("num_prefix", 0)
    for name, halves in zip(names, stages, strict=True):
        for half, own in halves.items():
            _check_half(name, half, own, n, prefix, width)
        layers = {len(array) for own in halves.values() for array in own.values()}
        if len(layers) != 1:
            msg = f"the stage {name!r} has {layers or 'no'} layers in its halves"
            raise ValueError(msg)
    if "pattern" in spec:
        _check_pattern(spec["pattern"], n + prefix, names, stages)


def stages_of(count: int, arrays: Arrays) -> list[dict[str, Arrays]]:
    """For each stage its halves, for each half its arrays by their short names."""
    found: list[dict[str, Arrays]] = [{} for _ in range(count)]
    numbers = {str(number): number for number in range(count)}
    for name, array in arrays.items():
        parts = name.split(".", maxsplit=3)
        if parts[0] != "stages" or len(parts) != 4:
            continue
        _, number, half, short = parts
        if number in numbers:
            found[numbers[number]].setdefault(half, {})[short] = array
    return [{half: own[half] for half in sorted(own)} for own in found]


def _check_registers(spec: dict[str, Any], arrays: Arrays) -> int:
    """The width of the blocks."""
    n, d = spec["seq_len"], spec["d_model"]
    found = {name: arrays[name].shape for name in (*AROUND, PREFIX) if name in arrays}
    if not found and "width" not in spec:
        return d
    w, P = spec.get("width"), spec.get("num_prefix", 0)
    expected: tuple[tuple[Any, ...], ...] = ((w, d), (n, w), (d, w))
    shapes: dict[str, tuple[Any, ...]] = dict(zip(AROUND, expected, strict=True))
    if P:
        shapes[PREFIX] = (P, w)
    if found != shapes:
        msg = f"the read-in and the read-out have shapes {found}, expected {shapes}"
        raise ValueError(msg)
    return spec["width"]


def _check_half(name: str, half: str, arrays: Arrays, n: int, prefix: int, d: int) -> None:
    first = HALVES[half][0]
    axes = 4 if half == "attention" else 3
    if first not in arrays or arrays[first].ndim != axes:
        msg = f"the stage {name!r} has no {first} with {axes} axes: no shapes fit"
        raise ValueError(msg)
    if half == "attention":
        layers, h, m, _ = arrays[first].shape
        row, column = (layers, h, m, d), (layers, h, d, m)
        shapes = {"W_Q": row, "b_Q": row[:3], "W_K": row, "W_V": row, "W_O": column}
        mask = (layers, n + prefix, n + prefix)
        optional = {"b_V": row[:3], "gain": (layers, h, 2 * n - 1), "mask": mask}
        shapes |= {key: shape for key, shape in optional.items() if key in arrays}
        _check_gain(name, arrays.get("gain"), n, prefix)
    else:
        layers, r, _ = arrays[first].shape
        shapes = {"W_1": (layers, r, d), "b_1": (layers, r), "W_2": (layers, d, r)}
        shapes["b_2"] = (layers, d)
        if any(key in arrays for key in PHI):
            sizes = zip(PHI, PHI_SIZES, strict=True)
            shapes |= {key: (layers, r, size) for key, size in sizes}
    found = {key: array.shape for key, array in arrays.items()}
    if found != shapes:
        msg = f"the stage {name!r} has arrays of shapes {found}, expected {shapes}"
        raise ValueError(msg)
    if 0 in arrays[first].shape:
        what = "layers, heads and head size" if half == "attention" else "layers and units"
        msg = f"the stage {name!r} has shapes {found}: its {what} must be at least 1"
        raise ValueError(msg)
    _check_values(name, arrays)


def _check_gain(name: str, gain: np.ndarray | None, n: int, prefix: int) -> None:
    if gain is None:
        return
    if prefix:
        msg = f"the stage {name!r} has a gain, which prefix tokens have no offsets for"
        raise ValueError(msg)
    offsets = gain.shape[-1] if gain.ndim else 0
    if offsets != 2 * n - 1:
        msg = (
            f"the stage {name!r} has a gain of {offsets} offsets, but {n} tokens have "
            f"{2 * n - 1}"
        )
        raise ValueError(msg)


def _check_values(name: str, arrays: Arrays) -> None:
    """What numbers of the right shape must satisfy."""
    mask = arrays.get("mask")
    if mask is not None and not mask.any(axis=-1).all():
        msg = f"the stage {name!r} has a mask that leaves a token nothing to attend to"
        raise ValueError(msg)
    breaks, slopes = arrays.get(PHI[0]), arrays.get(PHI[2])
    if breaks is None or slopes is None:
        return
    if not (breaks[..., 0] < breaks[..., 1]).all():
        msg = f"the stage {name!r} has breaks that do not increase"
        raise ValueError(msg)
    if not (slopes == 0).any(axis=-1).all():
        msg = f"the stage {name!r} has a function without a constant piece"
        raise ValueError(msg)


def _check_pattern(
    pattern: dict[str, Any], tokens: int, names: list[str], stages: list[dict[str, Arrays]]
) -> None:
    """Whether the masks are those of the pattern that the description names.

    The verifier in one file does without `patterns`, and reads the masks alone.
    """
    try:
        cycle = import_module("everyformer.patterns.masks_in_turn")
    except ModuleNotFoundError:
        return
    cycle.check_cycle(cycle.Pattern.from_json(pattern), tokens, _layers(names, stages))


def _layers(
    names: list[str], stages: list[dict[str, Arrays]]
) -> Iterator[tuple[str, int, bool, np.ndarray | None]]:
    for name, halves in zip(names, stages, strict=True):
        layers = len(next(iter(next(iter(halves.values())).values())))
        mask = halves.get("attention", {}).get("mask")
        yield name, layers, "attention" in halves, mask
