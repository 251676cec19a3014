"""Follow a compiled network slot by slot, from its registers to its results.

    V1  the registers at the start: inputs, constants, empty ones
    V2  every head and unit that writes belongs to one claim, and writes one register, which
        is empty or updated in place; nothing else changes
    V3  heads, V4 units: what a register holds then, with its error
    read-out: the d coordinates of every token's result

All steps of a slot read the state before the slot.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from everyformer.certify.compile.claims import Attend, Claims, ExponentialSum, Mixture
from everyformer.certify.compile.exponential_sums import exponential_sum
from everyformer.certify.compile.heads import Written, attend, mixture
from everyformer.certify.compile.products import Multiplied, multiply, normalised
from everyformer.certify.compile.rounded import LARGEST, bounded
from everyformer.certify.compile.rows import BlockWeights, row_of
from everyformer.certify.compile.sort_runs import SortRuns
from everyformer.certify.compile.unary_heads import Made, unary
from everyformer.certify.compile.units import follow_units, units_of
from everyformer.certify.compile.values import Held, State, Terms, Value
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import RegisterWeights, Weights
from everyformer.targets.box import Box

ALLOWED = frozenset({"W_Q", "b_Q", "W_K", "W_V", "W_O", "W_1", "b_1", "W_2", "b_2"})
ZERO = Fraction(0)


@dataclass
class Followed:
    """What is found on the way.

    Attributes:
        results: The coordinates of the results.
        states: The state before each slot and after the last, for reports.
        made: Squares and roots, by block and register.
        sorted_lines: Lines of f that are claimed to be sorts, for each that was followed.
    """

    results: list[Value] = field(default_factory=list[Value])
    states: list[State] = field(default_factory=list[State])
    made: dict[tuple[int, int], Made] = field(default_factory=dict[tuple[int, int], Made])
    sorted_lines: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])


def follow(weights: Weights, claims: Claims, box: Box, algebra: Terms) -> Followed:
    """Every register after every slot, and the results.

    Raises:
        Undecided: If the network is not what it claims to be.
    """
    held = weights.registers
    if held is None or not weights.softmax or weights.positions is not None:
        raise Undecided("weights", "a compiled network has registers and softmax")
    blocks = list(_blocks(weights, claims))
    if len(blocks) != len(claims.blocks):
        why = f"{len(blocks)} blocks, and claims for {len(claims.blocks)}"
        raise Undecided("program", why)
    state = _start(weights, held, claims, box, algebra)
    found = Followed(states=[state])
    runs = SortRuns(claims.sorts, algebra)
    for block in blocks:
        state = _attention(block, claims, state, found)
        found.states.append(state)
        state = _feed_forward(block, claims, state, runs)
        state = runs.ended(block, state)
        found.states.append(state)
    found.sorted_lines += runs.lines
    ideals = claims.coefficients.get("W_out", {})
    for i in range(weights.d_model):
        found.results.append(state.read(row_of(held.W_out[i], ideals, (i,))))
    return found


def _blocks(weights: Weights, claims: Claims) -> Iterator[BlockWeights]:
    """The blocks with both halves of each."""
    found: list[tuple[str, dict[str, np.ndarray]]] = []
    for stage in weights.stages:
        if stage.layers != 1 or not set(stage.arrays) <= ALLOWED:
            raise Undecided(stage.name, "a block of a compiled network has plain layers")
        own = stage.layer(0)
        _check_sizes(stage.name, own.values())
        if stage.same_block:
            found[-1][1].update(own)
        else:
            found.append((stage.name, dict(own)))
    for number, (name, arrays) in enumerate(found):
        yield BlockWeights(name, number, arrays, claims.coefficients)


def _check_sizes(stage: str, arrays: Iterable[np.ndarray]) -> None:
    for array in arrays:
        if not np.isfinite(array).all() or float(np.abs(array).max(initial=0.0)) > LARGEST:
            raise Undecided(stage, "a number is larger than 2^200")


def _start(
    weights: Weights, held: RegisterWeights, claims: Claims, box: Box, algebra: Terms
) -> State:
    """V1: a register is an entry of x, or a constant."""
    n = weights.seq_len
    before = np.zeros((0, len(held.W_in))) if held.prefix is None else held.prefix
    _check_sizes("registers", (held.W_in, held.start, held.W_out, before))
    ideals = claims.coefficients.get("start", {})
    registers: list[Held] = []
    for k, row in enumerate(held.W_in):
        prefix = before[:, k].copy()
        garbage = Fraction(float(np.abs(prefix).max(initial=0.0)))
        start = held.start[:, k].copy()
        if row.any():
            (places,) = np.nonzero(row)
            i = int(places[0])
            if len(places) > 1 or row[i] != 1.0 or start.any():
                why = f"register {k} is neither an entry of x nor a constant"
                raise Undecided("registers", why)
            entries = tuple(algebra.entry(j, i) for j in range(n))
            low, high = Fraction(box.lows[i]), Fraction(box.highs[i])
            bounded(max(abs(low), abs(high)), "the domain")
            registers.append(
                Held(entries, low, high, ZERO, ZERO, None, (), prefix, garbage)
            )
            continue
        stored = [Fraction(value) for value in start.tolist()]
        ideal = tuple(ideals.get((j, k), value) for j, value in enumerate(stored))
        e = max(abs(a - b) for a, b in zip(stored, ideal, strict=True))
        terms = tuple(algebra.constant(value) for value in ideal)
        registers.append(
            Held(terms, min(ideal), max(ideal), e, ZERO, start, ideal, prefix, garbage)
        )
    return State(algebra, registers, len(before))


def _attention(block: BlockWeights, claims: Claims, state: State, found: Followed) -> State:
    """V2 and V3: every head fills empty registers."""
    own = claims.blocks[block.number].heads
    if len(own) != block.heads:
        raise block.undecided(f"{block.heads} heads, and claims for {len(own)}")
    if block.heads == 0:
        return state
    after, written = state.copy(), set[int]()
    made: dict[int, Made] = {}
    for head, claim in enumerate(own):
        if isinstance(claim, Mixture):
            filled: Written = mixture(block, head, claim, state)
        elif isinstance(claim, Attend):
            filled = attend(block, head, claim, state)
        elif isinstance(claim, ExponentialSum):
            filled = exponential_sum(block, head, state)
        else:
            filled, known = unary(block, head, claim, state)
            made.update(known)
        for register, held in filled:
            if register in written or not state.held[register].is_empty:
                raise block.undecided(f"register {register} is not empty")
            written.add(register)
            after.write(register, held)
    for register, one in made.items():
        found.made[block.number, register] = one
    for claim in claims.products.get(block.number, {}).values():
        product = multiply(block, claim, made, state)
        product = _normalised(block, claims, found, product, state)
        after.pairs[product.plus] = product.pair
    return after


def _normalised(
    block: BlockWeights, claims: Claims, found: Followed, product: Multiplied, before: State
) -> Multiplied:
    """The product, with a sharper error where it is part of a group."""
    claim = claims.normalised.get((block.number, product.plus, product.minus))
    if claim is None:
        return product
    return normalised(block, claim, found.made, product, before)


def _feed_forward(
    block: BlockWeights, claims: Claims, state: State, runs: SortRuns
) -> State:
    """V2 and V4: every unit that writes belongs to one claim, in its own register."""
    own = claims.blocks[block.number].units
    if block.units == 0:
        if own:
            raise block.undecided("units are claimed in a block without any")
        return state
    if block.arrays["b_2"].any():
        raise block.undecided("b_2 writes to registers")
    writing = {k for k in range(block.units) if block.written_by(k) is not None}
    claimed = [unit for claim in own for unit in units_of(claim)]
    if len(set(claimed)) != len(claimed) or not writing <= set(claimed):
        raise block.undecided("a unit without a claim writes, or one has two")
    if any(unit >= block.units for unit in claimed):
        raise block.undecided("a claim names a unit that does not exist")
    after, written = state.copy(), set[int]()
    for claim in own:
        if claim.register in written:
            raise block.undecided(f"register {claim.register} is written twice")
        written.add(claim.register)
        after.write(claim.register, follow_units(block, claim, state, runs))
    return after
