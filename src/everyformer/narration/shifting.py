"""Shifts of ids by attention, told (Yun et al. 2020, Lemma 6; Yun et al. 2020b)."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from everyformer.model.forward import run_blocks
from everyformer.model.stacks import AttentionStack
from everyformer.narration.chapter import Scene, Told
from everyformer.narration.numbers import agree, number, signed, vector


def heard(stack: AttentionStack, block: int, j: int, n: int) -> np.ndarray:
    """The tokens to which token j attends in a block, 0-based."""
    everyone = np.arange(n)
    return everyone if stack.mask is None else everyone[stack.mask[block, j]]


def _listens(stack: AttentionStack, block: int, j: int, n: int) -> str:
    if stack.mask is None:
        return ""
    return f"hears tokens {', '.join(str(k + 1) for k in heard(stack, block, j, n))}: "


def _stack(scene: Scene) -> AttentionStack:
    stack = scene.stage.attention
    assert stack is not None, "no attention"  # noqa: S101
    assert stack.W_O.shape[1] >= 2, "fewer than two heads"  # noqa: S101
    return stack


def _moves(scene: Scene) -> Iterator[tuple[int, int, np.ndarray, Any]]:
    """(block, token, all ids before, id after) of every id that a block changed."""
    normaliser = scene.network.architecture.normaliser
    ids = scene.ids(scene.before)
    for block, state in enumerate(run_blocks(scene.stage, scene.before, normaliser)):
        after = scene.ids(state)
        for j in np.flatnonzero(np.asarray(ids != after, dtype=bool)):
            yield block, int(j), ids, after[j]
        ids = after


def selective_shifts(scene: Scene) -> Told:
    """Lemma 6: id += delta^{-d} (max - min) for the token whose id is l."""
    stack = _stack(scene)
    d = scene.x.shape[-1]
    power = "1/delta" if d == 1 else f"(1/delta)^{d}"
    V = number(stack.W_O[0, 0, 0, 0])
    claim = (
        "Lemma 6: one layer for each id l of the grid, from below. Two heads find the "
        "largest and the smallest id; the token whose id is l, and no other, moves: "
        f"id + V (max - min), V = {power} = {V}."
    )
    return _shifts(scene, claim, "Nothing moves: all ids are equal, or outside the grid.")


def chain_shifts(scene: Scene) -> Told:
    """Stage A of a sparse network: along the path, by what a token hears."""
    claim = (
        "Attention is sparse: a token hears only some others. Along a path through all "
        "tokens, one after the other moves by a (max - min) over what it hears, and so "
        "learns what came before."
    )
    return _shifts(scene, claim, "Nothing moves: the tokens lie outside the grid.")


def _shifts(scene: Scene, claim: str, nothing: str) -> Told:
    stack = _stack(scene)
    lines: list[str] = []
    as_told: set[int] = set()
    other = 0
    for block, j, ids, after in _moves(scene):
        near = ids[heard(stack, block, j, scene.n)]
        old, most, least = ids[j], near.max(), near.min()
        V, b = stack.W_O[block, 0, 0, 0], stack.b_Q[block, :2, 0]
        told = f"layer {block + 1}, token {j + 1}: "
        if not (b[0] < old < b[1] and agree(old + V * (most - least), after)):
            lines.append(f"{told}the id {number(old)} becomes {number(after)}")
            other += 1
            continue
        swept = (b[0] + b[1]) / 2
        where = _listens(stack, block, j, scene.n)
        if stack.mask is None:
            at = "l" if agree(old, swept) else "within delta/2 of l"
            where = f"its id is {at} = {number(swept)}: "
        as_told.add(j)
        sums = f"{number(old)} + {number(V)} ({number(most)} - {signed(least)})"
        lines.append(f"{told}{where}{sums} = {number(after)}")
    cells = np.asarray(scene.ids(scene.before) * scene.K, dtype=np.float64)
    on_grid = agree(cells, np.round(cells))
    if on_grid and not other and len(as_told) >= scene.n - (stack.mask is not None):
        largest = number(scene.ids(scene.new).max())
        lines.append(f"the largest id, {largest}, names the whole sequence of cells")
    return Told(claim, tuple(lines) or (nothing,))


def maximum_shifts(scene: Scene) -> Told:
    """The global shift, and stage B of a sparse network: id += C max."""
    stack = _stack(scene)
    if stack.mask is None:
        claim = (
            "Lemma 6: the largest id names the sequence. C times it is added to every id: "
            "now an id names a token together with its whole sequence. id + C max, "
            f"C = {number(stack.W_O[0, 0, 0, 0])}."
        )
    else:
        claim = (
            "The name of the sequence is carried to every token: in each layer a token "
            "adds C times the largest id that it hears, "
            f"C = {number(stack.W_O[0, 0, 0, 0])}."
        )
    lines: list[str] = []
    for block, j, ids, after in _moves(scene):
        near, low = ids[heard(stack, block, j, scene.n)], ids[j] < stack.b_Q[block, 0, 0]
        most, C = near.min() if low else near.max(), stack.W_O[block, 0, 0, 0]
        told = f"layer {block + 1}, " if scene.stage.blocks > 1 else ""
        told += f"token {j + 1}: {_listens(stack, block, j, scene.n)}"
        told += "its id is below 0, so the smallest one counts: " if low else ""
        if agree(ids[j] + C * most, after):
            sums = f"{number(ids[j])} + {number(C)} ({number(most)})"
            lines.append(f"{told}{sums} = {number(after)}")
        else:
            lines.append(f"{told}the id {number(ids[j])} becomes {number(after)}")
    return Told(claim, tuple(lines) or ("Nothing moves: the largest id is 0.",))


def lift(scene: Scene) -> Told:
    """A single token has no context; its id is lifted above all values."""
    old, new = scene.ids(scene.old), scene.ids(scene.new)
    claim = "A single token has no context: its id is lifted above all values of f."
    sums = f"{vector(old)} + {vector(new - old)} = {vector(new)}"
    return Told(claim, (f"token 1: {sums}",))
