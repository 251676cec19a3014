"""A whole proof at one input: the steps in order, and f(x) against g(x) at the end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from everyformer.model.network import Network, StageState
from everyformer.model.stacks import Stage
from everyformer.narration import averaging, partition, quantising, shifting, valuing
from everyformer.narration.chapter import Chapter, Narrator, Scene, Teller, tell, unit_of
from everyformer.narration.numbers import agree, tokens, vector

Function = Callable[[np.ndarray], np.ndarray]

BY_KIND: Mapping[str | None, Narrator] = {
    "position layer": quantising.position_layer,
    "read in": quantising.read_in,
    "out of range": quantising.out_of_range,
    "quantise": quantising.quantise,
    "selective shifts": shifting.selective_shifts,
    "global shift": shifting.maximum_shifts,
    "lift": shifting.lift,
    "chain shifts": shifting.chain_shifts,
    "max shifts": shifting.maximum_shifts,
    "ids to codes": valuing.ids_to_codes,
    "value map": valuing.value_map,
}
"""The steps of the papers' constructions."""

TELLERS = {
    teller.theorem: teller
    for teller in (
        averaging.TELLER,
        partition.TELLER,
        Teller("Memory", "a memory of sequences"),
    )
}
"""Of constructions with registers."""


@dataclass(frozen=True)
class Narration:
    """A proof at one input.

    Attributes:
        chapters: The steps, in order.
        rows: The tokens as a table: the input, then after each step.
        x: The input, shape (n, d).
        g: What came out.
        f: What the target gives, if it is known.
    """

    chapters: tuple[Chapter, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    x: np.ndarray
    g: np.ndarray
    f: np.ndarray | None


def narrate(
    network: Network, x: np.ndarray, trace: Sequence[StageState], f: Function | None = None
) -> Narration:
    """Tell what a network does to one sequence.

    Args:
        network: The network; compiled ones have a program instead (`Trace.insides`).
        x: One sequence, shape (n, d).
        trace: What `network.trace(x)` found.
        f: The target, if it is known.
    """
    n, first = len(x), trace[0]
    chapters: list[Chapter] = []
    rows = [("input x", tuple(tokens(x)))]
    entered = None
    if network.program is None:
        entered = _entered(network, x, first.state[len(first.state) - n :])
    if entered is not None:
        chapters.append(entered)
        rows.append((entered.title, entered.values))
    if network.program is None:
        scenes = [
            Scene(network, stage, x, before.state, after.state)
            for stage, before, after in zip(network.stages, trace, trace[1:], strict=False)
        ]
        for scene in scenes:
            chapters.append(tell(scene, _narrator(network, scene.stage)))
            rows.append((scene.stage.name, chapters[-1].values))
        if f is not None and scenes and network.construction is not None:
            chapters += _table(scenes, f)
    last = trace[-1].state
    g = last[len(last) - n :]
    if network.registers is not None:
        g = network.registers.read_out(last)
        rows.append(("output g(x)", tuple(tokens(g))))
    value = None if f is None else f(np.asarray(x, dtype=np.float64))
    return Narration(tuple(chapters), tuple(rows), x, g, value)


def _narrator(network: Network, stage: Stage) -> Narrator | None:
    made = network.construction
    if made is None:
        return None
    if network.registers is not None:
        teller = TELLERS.get(made.theorem)
        return None if teller is None else teller.narrators.get(stage.name)
    if stage.name in valuing.CLAIMS:
        return valuing.plainly
    return BY_KIND.get(stage.kind) if made.ids is not None else None


def _entered(network: Network, x: np.ndarray, state: np.ndarray) -> Chapter | None:
    """What is done to x before the first block."""
    if network.positions is not None:
        claim = (
            "The encoding E moves every token into an interval of its own, so that its "
            "position can be seen in its value: x + E."
        )
        lines = quantising.with_positions(x, network.positions)
        values = tuple(tokens(np.round(np.asarray(state, dtype=np.float64), 9)))
        return Chapter("positions", "before the first block", claim, lines, values)
    if network.registers is None:
        return None
    kept = network.registers
    claim = (
        f"Every token gets {kept.width} registers: for x, and for what the blocks compute."
    )
    made = network.construction
    if made is None or not _holds_a_table(made.theorem):
        prefix = f" {kept.num_prefix:,} constant tokens stand before the sequence."
        told = claim + prefix * bool(kept.num_prefix)
        return Chapter("read in", "before the first block", told, (), tuple(tokens(x)))
    data = state[:, : x.shape[-1]]
    moved = unit_of(made, x)
    lines = tuple(
        f"token {j + 1}: data = {vector(a)} + {vector(np.round(b - a, 9))} = {vector(b)}"
        for j, (a, b) in enumerate(zip(moved, data, strict=True))
    )
    values = tuple(f"data = {vector(token)}" for token in data)
    return Chapter("read in", "before the first block", claim, lines, values)


def _holds_a_table(theorem: str) -> bool:
    return theorem in TELLERS and TELLERS[theorem].cells is not None


def _table(scenes: Sequence[Scene], f: Function) -> list[Chapter]:
    """Where the value comes from: f at the centre of the cell."""
    scene, last = scenes[0], scenes[-1]
    teller = TELLERS.get(scene.construction.theorem)
    cells = None if teller is None or teller.cells is None else teller.cells(scene)
    for one in scenes:
        if one.stage.kind == "quantise":
            cells = quantising.columns(scene, one.new, one.old)
    if cells is None or (scene.unit < 0).any() or (scene.unit > 1).any():
        return []
    centre = quantising.centre(scene, cells)
    value = f(centre)
    out = last.new
    if last.network.registers is not None:
        out = last.network.registers.read_out(last.after)
    told = f"f at the centre {_sequence(centre)} of this cell is {_sequence(value)}"
    repeated = len(np.unique(cells, axis=0)) < len(cells)
    if repeated and scene.construction.theorem == "Theorem 2":
        why = "two tokens share a cell, and Theorem 2 gives such sequences up"
        lines = (f"{told}, but {why}: the network gives {_sequence(out)}.",)
    elif agree(value, out):
        lines = (f"{told}, and that is what the network gives for all of the cell.",)
    else:
        lines = (f"{told}; the network gives {_sequence(out)}.",)
    claim = "The table that the network holds has one value for each cell of the grid."
    return [Chapter("the value", "the certificate's cells", claim, lines, ())]


def _sequence(values: np.ndarray) -> str:
    return f"({', '.join(tokens(values))})"
