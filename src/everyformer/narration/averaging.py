"""Averaging attention, told (docs/constructions/averaging.md)."""

from fractions import Fraction

import numpy as np

from everyformer.construct.averaging.layers import AveragingSizes, Variant
from everyformer.narration.chapter import Scene, Teller, Told
from everyformer.narration.numbers import agree, number, vector
from everyformer.targets.box import Box, Grid


def sizes(scene: Scene) -> AveragingSizes:
    """The registers, from what the stages are called."""
    made, spec = scene.construction, scene.network.architecture
    names = [stage.name for stage in scene.network.stages]
    grid = Grid(made.grid, spec.seq_len, Box(made.lows, made.highs))
    variant: Variant = "two-step" if "whole digits" in names else "wide"
    positional, everywhere = "symbols" not in names, made.reach > 0
    found = AveragingSizes(grid, positional, variant, Fraction(1, 4), everywhere=everywhere)
    assert found.layout.width == spec.inner_width, "other registers"  # noqa: S101
    return found


def register(scene: Scene, name: str) -> np.ndarray:
    """A register of every token, after the stage."""
    return scene.new[:, sizes(scene).layout.names.index(name)]


def cells(scene: Scene) -> np.ndarray:
    """The cell of every coordinate, by division; at the upper end the last one."""
    return np.clip(np.floor(scene.unit * scene.K), 0, scene.K - 1).astype(int)


def _shown(scene: Scene, *names: str) -> tuple[str, ...]:
    columns = [register(scene, name) for name in names]
    return tuple(
        ", ".join(
            f"{name} = {number(c[j])}" for name, c in zip(names, columns, strict=True)
        )
        for j in range(scene.n)
    )


def digits(scene: Scene) -> Told:
    """A_j = sum_i k_ij K^(i + dj)."""
    K, d = scene.K, scene.x.shape[-1]
    claim = (
        f"A staircase of ReLUs finds the cell k of every coordinate, 0 to {K - 1}, and "
        f"writes its digits: A_j = sum_i k_ij {K}^(i + {d}(j-1)), with i from 0."
    )
    return Told(claim, _sums(scene, "A", d), values=_shown(scene, "A"))


def _sums(scene: Scene, name: str, step: int) -> tuple[str, ...]:
    """sum_i k_ij K^(i + step j) for every token, beside the register of that name."""
    K, d = scene.K, scene.x.shape[-1]
    found, alarm, lines = register(scene, name), register(scene, "A"), list[str]()
    for j, k in enumerate(cells(scene)):
        sums = " + ".join(f"{k[i]} ({K}^{i + step * j})" for i in range(d))
        exact = sum(int(k[i]) * K ** (i + step * j) for i in range(d))
        told = f"token {j + 1}: cell {vector(k)}, {name} = {sums}"
        lines.append(_outside(scene, j, alarm[j]) or _written(told, exact, found[j]))
    return tuple(lines)


def _written(told: str, exact: int, found: float) -> str:
    """A sum, with what the network has; they differ near the border of two cells."""
    if agree(float(exact), float(found)):
        return f"{told} = {number(exact)}"
    return f"{told} = {number(exact)}, but it has {number(found)}: x is near a border"


def _outside(scene: Scene, j: int, A: float) -> str | None:
    """What is said of a token outside the box; None of others."""
    if ((scene.unit[j] >= 0) & (scene.unit[j] <= 1)).all():
        return None
    why = "larger than any key of the table, so that the value will be 0"
    return f"token {j + 1}: outside the box, A = {number(A)}, {why}"


def whole_digits(scene: Scene) -> Told:
    """In two steps: first the number of the cell, then its place."""
    claim = "A staircase of ReLUs finds the number m of the cell of every coordinate."
    names = [f"m{i}" for i in range(scene.x.shape[-1])]
    shown = _shown(scene, *names)
    lines = tuple(f"token {j + 1}: {text}" for j, text in enumerate(shown))
    return Told(claim, lines, values=shown)


def symbols(scene: Scene) -> Told:
    """S_j = sum_i k_ij K^i."""
    K = scene.K
    claim = (
        f"A staircase of ReLUs finds the cell k of every coordinate, 0 to {K - 1}: the "
        f"symbol of a token is S = sum_i k_i {K}^i."
    )
    return Told(claim, _sums(scene, "S", 0), values=_shown(scene, "S"))


def codes(scene: Scene) -> Told:
    """A_j = phi(S_j), phi a Bose-Chowla set."""
    claim = (
        "A code phi(S) replaces each symbol. Sums of n codes (a Bose-Chowla set) are equal "
        "only if their symbols are: the sum will name the tokens, whatever their order."
    )
    S, A = register(scene, "S"), register(scene, "A")
    lines = tuple(
        _outside(scene, j, A[j])
        or f"token {j + 1}: A = phi({number(S[j])}) = {number(A[j])}"
        for j in range(scene.n)
    )
    return Told(claim, lines, values=_shown(scene, "S", "A"))


def total(scene: Scene) -> Told:
    """C = n mean_j A_j."""
    A, C = register(scene, "A"), register(scene, "C")
    claim = (
        "Attention with all scores 0 is a plain mean. Times n it is the sum of all A, an "
        "integer that names the whole sequence of cells."
    )
    sums = f"C = {' + '.join(number(a) for a in A)} = {number(A.sum())}"
    lines = [f"every token: {sums}"]
    if not agree(C, np.full_like(C, A.sum())):
        lines = [f"token {j + 1}: {sums}, but it has {number(c)}" for j, c in enumerate(C)]
    return Told(claim, tuple(lines), values=_shown(scene, "C"))


LAST = "A last staircase holds the table of f; the value of a token belongs to"


def look_up(scene: Scene) -> Told:
    """out_j = table[C + K^N j], or table[V C + S_j]."""
    a, names = sizes(scene), sizes(scene).layout.names
    C = register(scene, "C")
    out = scene.new[:, [names.index(f"out{i}") for i in range(a.d)]]
    if a.positional:
        keys = [
            f"C + {a.sequences} ({j}) = {number(c + a.sequences * j)}"
            for j, c in enumerate(C)
        ]
        claim = f"{LAST} the key C + K^(nd) (j-1)."
    else:
        S = register(scene, "S")
        keys = [f"{a.V} C + S = {number(a.V * c + s)}" for c, s in zip(C, S, strict=True)]
        claim = f"{LAST} the key V C + S."
    lines = tuple(
        f"token {j + 1}: key {key}, value {vector(value)}"
        for j, (key, value) in enumerate(zip(keys, out, strict=True))
    )
    return Told(claim, lines, values=tuple(vector(value) for value in out))


def total_and_look_up(scene: Scene) -> Told:
    """The wide variants do both in one block."""
    first, second = total(scene), look_up(scene)
    return Told(
        f"{first.claim} {second.claim}",
        (*first.lines, *second.lines),
        values=second.values,
    )


NARRATORS = {
    "digits": digits,
    "placed digits": digits,
    "whole digits": whole_digits,
    "symbols": symbols,
    "codes": codes,
    "sum": total,
    "look-up": look_up,
    "sum and look-up": total_and_look_up,
}

TELLER = Teller("Averaging", "averaging attention", NARRATORS, cells)
