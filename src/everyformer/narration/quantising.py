"""From real tokens to the grid, told (Yun et al. 2020, Lemma 5 and Appendix C.1)."""

from fractions import Fraction
from typing import Any

import numpy as np

from everyformer.model.stacks import toeplitz
from everyformer.narration.chapter import Scene, Told, changes, unit_of
from everyformer.narration.numbers import agree, number, signed, vector

GUARD = 1e-6
"""What lifts tokens by less is a guard against rounding, not a position."""


def with_positions(x: np.ndarray, E: np.ndarray) -> tuple[str, ...]:
    """x + E, token by token."""
    lines = [
        f"token {j + 1}: {vector(token)} + {vector(_rounded(step))} = "
        f"{vector(_rounded(token + step))}"
        for j, (token, step) in enumerate(zip(x, E, strict=True))
    ]
    lift = float(np.min(np.asarray(E, dtype=np.float64)))
    return (*lines, *_guard(lift))


def _rounded(values: np.ndarray) -> np.ndarray:
    """Without a guard; Fractions as they are."""
    return values if values.dtype == object else np.round(values, 9)


def _guard(lift: float) -> tuple[str, ...]:
    if not 0 < lift < GUARD:
        return ()
    why = "so that rounding does not push one below the border of its cell"
    return (f"besides, every token is lifted by {lift:.1e}, {why}",)


def position_layer(scene: Scene) -> Told:
    """Luo et al. 2022, Theorem 3: attention with a gain makes positions."""
    stack, n = scene.stage.attention, scene.n
    assert stack is not None, "no attention"  # noqa: S101
    assert stack.gain is not None, "no gain"  # noqa: S101
    assert not stack.W_Q.any(), "W_Q is not 0"  # noqa: S101
    assert not stack.W_V.any(), "W_V is not 0"  # noqa: S101
    assert stack.b_V is not None, "no bias of the values"  # noqa: S101
    shares = [toeplitz(gain, n).sum(axis=-1) / Fraction(n) for gain in stack.gain[0]]
    if stack.W_O.dtype != object:
        shares = [share.astype(np.float64) for share in shares]
    steps = [
        share[:, None] * (W @ b)[None]
        for share, W, b in zip(shares, stack.W_O[0], stack.b_V[0], strict=True)
    ]
    factor = stack.W_O[0, 0] @ stack.b_V[0, 0]
    lines = tuple(
        f"token {j + 1}: {vector(token)} + {vector(_rounded(factor))} ({j}/{n}) = "
        f"{vector(_rounded(token + step))}"
        for j, (token, step) in enumerate(zip(scene.old, steps[0], strict=True))
    )
    lift = float(np.max(np.asarray(sum(steps[1:]), dtype=np.float64)))
    claim = (
        "Positions without an encoding E: the scores are 0, so softmax is 1/n everywhere; "
        f"a triangular gain leaves the share (i-1)/{n} to token i, which is added, scaled."
    )
    return Told(claim, (*lines, *_guard(lift)), scene.old + sum(steps))


def read_in(scene: Scene) -> Told:
    """The user's box to [0, 1]^d."""
    made = scene.construction
    ends = zip(made.lows, made.highs, strict=True)
    box = " x ".join(f"[{number(a)}, {number(b)}]" for a, b in ends)
    claim = f"The box {box} becomes [0, 1] in every coordinate: (z - low) / (high - low)."
    expected = unit_of(made, scene.old)
    if scene.x.shape[-1] > 1:
        return Told(claim, changes(scene), expected)
    low, width = made.lows[0], made.highs[0] - made.lows[0]
    lines = tuple(
        f"token {j + 1}: ({number(old)} - {signed(low)}) / {number(width)} = "
        f"{vector(_rounded(new))}"
        for j, (old, new) in enumerate(zip(scene.old[:, 0], scene.new, strict=True))
    )
    return Told(claim, lines, expected)


def out_of_range(scene: Scene) -> Told:
    """Coordinates outside [0, 1] are sent far below 0."""
    claim = (
        "Theorem 2 is about functions that are 0 outside the box. A coordinate outside of "
        "it is sent far below 0, where no later step knows it."
    )
    outside = [j for j, token in enumerate(scene.unit) if ((token < 0) | (token > 1)).any()]
    if not outside:
        return Told(claim, ("All tokens lie in the box: nothing changes.",), scene.old)
    return Told(claim, changes(scene))


def quantise(scene: Scene) -> Told:
    """Lemma 5: every coordinate is rounded down to a multiple of delta."""
    K, delta = scene.K, scene.delta
    claim = (
        f"Lemma 5: every coordinate is rounded down to a multiple of delta = 1/K = 1/{K}."
    )
    lines: list[str] = []
    for j, (old, new) in enumerate(zip(scene.old, scene.new, strict=True)):
        told = [_cell(a, b, delta) for a, b in zip(old, new, strict=True)]
        name = f"token {j + 1}"
        if len(told) == 1:
            lines.append(f"{name}: {told[0]}")
        else:
            lines += [f"{name}, coordinate {i + 1}: {one}" for i, one in enumerate(told)]
    u = scene.construction.ids
    if u is not None:
        lines.append(_ids_in_words(scene, u.direction))
    return Told(claim, tuple(lines))


def _cell(old: Any, new: Any, delta: Fraction) -> str:
    """How a coordinate was rounded."""
    if old == new < 0:
        return f"{number(new)} lies outside the grid and stays"
    cell = round(float(new / float(delta)))
    if not agree(float(cell * delta), float(new)):
        if old == new:
            return f"{number(new)} lies outside the grid and stays"
        return (
            f"{number(old)} becomes {number(new)}, which is not on the grid: it lies on a "
            "ramp between two cells, where no lemma holds (the certificate allows for it)"
        )
    low, high = (cell + k for k in (0, 1))
    place = f"[{number(low * _plain(delta))}, {number(high * _plain(delta))})"
    if low * delta <= Fraction(old) + Fraction(1, 2**20) and Fraction(old) < high * delta:
        return f"{number(old)} lies in {place} and becomes {number(new)}"
    return f"{number(old)} belongs to the cell {place} and becomes {number(new)}"


def _plain(delta: Fraction) -> Fraction | float:
    """delta as a float where that is exact."""
    return float(delta) if Fraction(float(delta)) == delta else delta


def _ids_in_words(scene: Scene, u: tuple[int, ...]) -> str:
    ids = vector(scene.ids(scene.new))
    if len(u) == 1:
        return f"the id of a token is the token itself, since d = 1: {ids}"
    return f"the id of a token z is u^T z with u = {vector(np.array(u))}: {ids}"


def columns(scene: Scene, quantised: np.ndarray, before: np.ndarray) -> np.ndarray | None:
    """The cell of every coordinate, 0 .. K - 1, shape (n, d); None outside the grid.

    Args:
        scene: Any stage of the network.
        quantised: The tokens after they were quantised.
        before: The tokens just before, in unit coordinates, with their positions.
    """
    moved = np.asarray(before, dtype=np.float64) - scene.unit
    places = (np.asarray(quantised, dtype=np.float64) - moved) * scene.K
    cells = np.round(places)
    inside = (cells >= 0) & (cells < scene.K) & (np.abs(places - cells) < GUARD)
    return cells.astype(int) if inside.all() else None


def centre(scene: Scene, cells: np.ndarray) -> np.ndarray:
    """The centre of a cell, in the user's coordinates."""
    made = scene.construction
    lows, highs = np.array(made.lows), np.array(made.highs)
    return lows + (highs - lows) * (cells + 0.5) / scene.K
