"""Arrays and claims: the network of a program, and what is said about it.

Coefficients are rationals until here. Where float64 does not hold one, the claim
"coefficients" names the rational that the stored number stands for.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from everyformer.construct.compile.lowering.allocate import (
    Allocation,
    allocate,
    block_sizes,
)
from everyformer.construct.compile.lowering.gadgets import Cell, Head, Reading, Units
from everyformer.construct.compile.lowering.knots import LARGEST_MEAN
from everyformer.construct.compile.lowering.listing import Line, listing, steps
from everyformer.construct.compile.lowering.lower import Lowering
from everyformer.construct.compile.lowering.schedule import Schedule, schedule
from everyformer.construct.compile.precision import Precision
from everyformer.construct.compile.program import Function, Program, Sorted
from everyformer.construct.compile.ranges import Range
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.compiled import ProgramStep
from everyformer.model.network import Network
from everyformer.model.registers import Registers
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage

SOURCE = "everyformer, docs/constructions/compile.md"


@dataclass(frozen=True)
class Compiled:
    """A network that computes a program.

    Attributes:
        network: The network.
        claims: What each head and unit is meant to be, as a JSON object.
        listing: The same for people: slot, register, what it computes, interval.
        steps: What registers hold, without intervals and errors.
        functions: Each function of one number: its block, and the range of its argument.
    """

    network: Network
    claims: dict[str, Any]
    listing: str
    steps: tuple[ProgramStep, ...] = ()
    functions: tuple[tuple[int, Function, Range], ...] = ()


@dataclass
class _Writer:
    """Collects numbers, rounded, and the rationals that they stand for."""

    coefficients: dict[str, list[list[Any]]] = field(default_factory=dict)

    def put(
        self, array: np.ndarray, at: tuple[int, ...], value: Fraction, name: str
    ) -> None:
        """Store a number in the last axes of an array."""
        stored = float(value)
        array[(..., *at)] = stored
        if Fraction(stored) != value:
            self.coefficients.setdefault(name, []).append([*at, str(value)])


def emit(
    program: Program, accuracy: Precision | Fraction | float, steady: float = LARGEST_MEAN
) -> Compiled:
    """The network of a program.

    Args:
        program: The steps.
        accuracy: The wanted error of gadgets that are not exact; a number for all.
        steady: Most that its knots may magnify what float64 rounds.

    Raises:
        ToleranceError: If a function is asked for outside its domain, or cannot be
            approximated so well in float64.
    """
    given = isinstance(accuracy, Precision)
    precision = accuracy if given else Precision(Fraction(accuracy))
    lowering = Lowering(program, precision, steady)
    outputs = lowering.outputs
    plan = schedule(lowering.works, outputs, lowering.constants)
    lowering.constants.close_gates()
    n, d = program.seq_len, len(program.outputs)
    P = _prefix_tokens(plan, outputs, has_prefix=lowering.constants.has_prefix)
    places = allocate(plan, outputs, (n, d, P))
    writer = _Writer()
    registers = _registers(places, outputs, len(program.box.lows), (n, d, P), writer)
    stages: list[Stage] = []
    blocks: list[dict[str, Any]] = []
    items_of = plan.by_block()
    for block, size in enumerate(block_sizes(plan, places)):
        items = [item.work for item in items_of.get(block, [])]
        heads = [work for work in items if isinstance(work, Head)]
        units = [work for work in items if isinstance(work, Units)]
        clears = [r for slot, r in places.clears if slot == 2 * block + 1]
        attention, head_claims = _attention(heads, places, size.components, block, writer)
        feed_forward, unit_claims = _feed_forward(units, clears, places, block, writer)
        stages.append(Stage(f"block {block}", SOURCE, attention, feed_forward))
        blocks.append({"heads": head_claims, "units": unit_claims})
    if not stages:  # an affine function of each token: a network has a block nevertheless
        stages.append(Stage("block 0", SOURCE, feed_forward=_idle(places.width)))
        blocks.append({"heads": [], "units": []})
    sizes = block_sizes(plan, places)
    spec = ArchitectureSpec(
        seq_len=n,
        d_model=d,
        num_heads=max([1, *(size.heads for size in sizes)]),
        d_head=max([1, *(size.components for size in sizes)]),
        d_ff=max([1, *(size.units for size in sizes)]),
        width=places.width,
        num_prefix=P,
    )
    network = Network(spec, tuple(stages), registers=registers)
    claims = {
        "blocks": blocks,
        "macros": [macro.claim(plan, places) for macro in lowering.macros],
        "coefficients": writer.coefficients,
    }
    sorts = [_sort_claim(one, lowering, plan, places) for one in program.sorts]
    if any(sorts):
        claims["sorting"] = _one_at_a_time([claim for claim in sorts if claim])
    lines = [
        Line(item.slot, target, item.work)
        for item in plan.items
        for target in item.work.targets
    ]
    text = listing(lines, places, outputs, lowering.cell_ranges)
    functions = tuple(
        (plan.starts[cell] // 2, function, known)
        for cell, (function, known) in lowering.functions.items()
        if cell in plan.starts
    )
    told = steps(lines, places, outputs, lowering.macros)
    return Compiled(network, claims, text, told, functions)


def _idle(width: int) -> FeedForwardStack:
    """One hidden unit that writes nothing."""
    return FeedForwardStack(
        np.zeros((1, 1, width)), np.zeros((1, 1)), np.zeros((1, width, 1)),
        np.zeros((1, width)),
    )  # fmt: skip


def _prefix_tokens(plan: Schedule, outputs: list[Reading], *, has_prefix: bool) -> int:
    readings = [r for item in plan.items for r in item.work.readings] + outputs
    used = (len(cell.prefix) for reading in readings for cell in reading.terms)
    return max([1, *used]) if has_prefix else 0


def _registers(
    places: Allocation,
    outputs: list[Reading],
    channels: int,
    sizes: tuple[int, int, int],
    writer: _Writer,
) -> Registers:
    n, d, P = sizes
    w = places.width
    W_in, start = np.zeros((w, channels)), np.zeros((n, w))
    W_out, prefix = np.zeros((d, w)), np.zeros((P, w))
    for cell, r in places.register.items():
        if cell.channel is not None:
            W_in[r, cell.channel] = 1.0
        elif cell.data is not None:
            for j, value in enumerate(cell.data):
                writer.put(start, (j, r), value, "start")
            known = [float(value) for value in cell.prefix]
            prefix[:, r] = known + [float(cell.fill)] * (P - len(known))
    for i, reading in enumerate(outputs):
        for cell, coefficient in reading.terms.items():
            writer.put(W_out, (i, places.register[cell]), coefficient, "W_out")
    return Registers(W_in, start, W_out, prefix if P else None)


def _attention(
    heads: list[Head], places: Allocation, m: int, block: int, writer: _Writer
) -> tuple[AttentionStack | None, list[dict[str, Any]]]:
    if not heads:
        return None, []
    h, w, register = len(heads), places.width, places.register
    W_Q, W_K, W_V = (np.zeros((1, h, m, w)) for _ in range(3))
    b_Q, W_O = np.zeros((1, h, m)), np.zeros((1, h, w, m))
    claims: list[dict[str, Any]] = []

    def row(array: np.ndarray, at: tuple[int, int], reading: Reading, name: str) -> None:
        for cell, value in reading.terms.items():
            writer.put(array, (*at, register[cell]), value, f"{block}.{name}")

    for i, head in enumerate(heads):
        for c, (query, key) in enumerate(zip(head.queries, head.keys, strict=True)):
            row(W_Q, (i, c), query, "W_Q")
            row(W_K, (i, c), key, "W_K")
            writer.put(b_Q, (i, c), -query.offset, f"{block}.b_Q")
        for c, average in enumerate(head.averages):
            row(W_V, (i, c), average.value, "W_V")
            at = (i, register[average.target], c)
            writer.put(W_O, at, average.scale, f"{block}.W_O")
        claim = dict(head.claim)
        if claim["step"] == "unary":
            columns = [average.column for average in head.averages]
            claim["columns"] = columns + [None] * (m - len(columns))
        claims.append(claim)
    return AttentionStack(W_Q, b_Q, W_K, W_V, W_O), claims


def _feed_forward(
    units: list[Units], clears: list[int], places: Allocation, block: int, writer: _Writer
) -> tuple[FeedForwardStack | None, list[dict[str, Any]]]:
    r = sum(len(work.rows) for work in units) + 2 * len(clears)
    if not r:
        return None, []
    w, register = places.width, places.register
    W_1, b_1, W_2 = np.zeros((1, r, w)), np.zeros((1, r)), np.zeros((1, w, r))
    claims: list[dict[str, Any]] = []
    k = 0
    for work in units:
        target = register[work.target]
        first = k
        for reading, weight in work.rows:
            for cell, value in reading.terms.items():
                writer.put(W_1, (k, register[cell]), value, f"{block}.W_1")
            writer.put(b_1, (k,), reading.offset, f"{block}.b_1")
            writer.put(W_2, (target, k), weight, f"{block}.W_2")
            k += 1
        claims.append(_unit_claim(work, first, register))
    for target in clears:
        W_1[0, k : k + 2, target] = 1.0, -1.0
        W_2[0, target, k : k + 2] = -1.0, 1.0
        claims.append({"step": "clear", "register": target, "units": [k, k + 1]})
        k += 2
    return FeedForwardStack(W_1, b_1, W_2, np.zeros((1, w))), claims


def _unit_claim(work: Units, first: int, register: dict[Cell, int]) -> dict[str, Any]:
    claim: dict[str, Any] = {"step": work.step, "register": register[work.target]}
    if work.step == "sum":
        terms: list[dict[str, Any]] = []
        for term in work.terms:
            units = list(range(first, first + len(term.rows)))
            first += len(units)
            gate = None if term.gate is None else register[term.gate]
            terms.append({"as": term.kind, "units": units, "gate": gate})
        return {**claim, "terms": terms}
    claim["units"] = list(range(first, first + len(work.rows)))
    if work.step == "exchange":
        claim["gates"] = [register[gate] for gate in work.gates]
    return claim


def _sort_claim(
    found: Sorted, lowering: Lowering, plan: Schedule, places: Allocation
) -> dict[str, Any] | None:
    """The claim about exchanges that sort; None if they do not keep to one register."""
    cells = [lowering.read(form).plain for form in found.rounds]
    registers = {None if cell is None else places.register.get(cell) for cell in cells}
    blocks = [plan.starts.get(cell, -1) // 2 for cell in cells if cell is not None]
    if len(registers) > 1 or None in registers or min(blocks) < 0:
        return None
    return {
        "register": registers.pop(),
        "blocks": [min(blocks), max(blocks)],
        "lines": list(found.lines),
    }


def _one_at_a_time(claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without claims about a register that another claim speaks of at that time."""
    taken: set[tuple[int, int]] = set()
    found: list[dict[str, Any]] = []
    for claim in claims:
        first, last = claim["blocks"]
        own = {(claim["register"], block) for block in range(first, last + 1)}
        if not own & taken:
            taken |= own
            found.append(claim)
    return found
