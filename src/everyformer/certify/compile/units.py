"""Hidden units: sums of copies, absolute values and ReLUs; maxima, exchanges, clears (G6).

In every run a unit is max(0, what its row reads); it is exactly 0 where its gate is closed.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from everyformer.certify.compile.claims import (
    Clear,
    Exchange,
    Extreme,
    Sum,
    Term,
    UnitClaim,
)
from everyformer.certify.compile.rounded import UNDERFLOW, up
from everyformer.certify.compile.rows import BlockWeights, Entry
from everyformer.certify.compile.sort_runs import SortRuns
from everyformer.certify.compile.values import Held, Row, State, Value
from everyformer.certify.rounding import UNIT_ROUNDOFF, gamma

ZERO = Fraction(0)


def units_of(claim: UnitClaim) -> tuple[int, ...]:
    """The hidden units that a claim speaks of."""
    if isinstance(claim, Sum):
        return tuple(unit for term in claim.terms for unit in term.units)
    return (claim.unit,) if isinstance(claim, Extreme) else claim.units


def follow_units(
    block: BlockWeights, claim: UnitClaim, state: State, runs: SortRuns
) -> Held:
    """What the claim's register holds after its units."""
    if isinstance(claim, Sum):
        return _sum(block, claim, state)
    if isinstance(claim, Clear):
        return _clear(block, claim, state)
    if isinstance(claim, Extreme):
        return _extreme(block, claim, state)
    return _exchange(block, claim, state, runs)


def _entry(block: BlockWeights, unit: int, register: int) -> Entry:
    found = block.written_by(unit)
    if found is None or found.register != register:
        raise block.undecided(f"unit {unit} does not write register {register}")
    return found


def _without(block: BlockWeights, row: Row, gate: int) -> Row:
    """A row without its gate, which it reads with -1."""
    if row.stored.get(gate) != -1.0 or row.ideal.get(gate) != -1:
        raise block.undecided(f"register {gate} is not a gate")
    return row.without(gate)


def _open(
    block: BlockWeights, state: State, gate: int, row: Row
) -> tuple[np.ndarray, bool]:
    """On which tokens a gate is open, and whether it is closed on all prefix tokens.

    A gate is open where it is 0. It is closed where it is at least twice what the row may
    read beside it: then the sum is below 0 in every run, whatever its order.

    Raises:
        Undecided: If it is neither.
    """
    held = state.held[gate]
    if held.constant is None:
        raise block.undecided(f"register {gate} is not a gate")
    opened = held.constant == 0.0
    closed = held.constant[~opened]
    if len(closed) and not Fraction(float(closed.min())) >= 2 * state.sizes(row):
        raise block.undecided("a gate is neither open nor closed")
    shut = held.prefix is not None and (
        state.prefix_len == 0
        or Fraction(float(held.prefix.min())) > 2 * state.on_prefix(row)
    )
    return opened, shut


def _sum(block: BlockWeights, claim: Sum, state: State) -> Held:
    """Terms c v, c |v|, c max(v, 0), each where its gate is open, in an empty register."""
    before = state.held[claim.register]
    if not before.is_empty:
        raise block.undecided(f"register {claim.register} is not empty")
    n = state.seq_len
    parts: list[list[tuple[Fraction, object]]] = [[] for _ in range(n)]
    lows, highs = [ZERO] * n, [ZERO] * n
    e, r, count = [ZERO] * n, [ZERO] * n, len(units_of(claim))
    size, garbage, shut = ZERO, before.garbage, True
    exact = len(claim.terms) == 1
    for term in claim.terms:
        entry = _entry(block, term.units[0], claim.register)
        read, rows = _argument(block, term, claim.register, state)
        opened = np.ones(n, dtype=bool)
        closed = state.prefix_len == 0
        for row in rows:
            if term.gate is not None:
                opened, closed = _open(block, state, term.gate, row)
            shut = shut and closed
            garbage += abs(Fraction(entry.stored)) * state.on_prefix(
                block.unit(term.units[0])
            )
        exact = exact and entry.is_power_of_two
        exact = exact and (len(rows) == 1 or state.rounding(rows[0]) <= UNDERFLOW)
        value = _made(term, read, state)
        factor = abs(Fraction(entry.stored))
        gap = abs(Fraction(entry.stored) - entry.ideal)
        ends = sorted((entry.ideal * value.low, entry.ideal * value.high))
        size += factor * value.size
        for j in np.flatnonzero(opened).tolist():
            parts[j].append((entry.ideal, value.terms[j]))
            lows[j], highs[j] = lows[j] + ends[0], highs[j] + ends[1]
            e[j] += factor * value.e + gap * value.size
            r[j] += factor * value.r
    lost = UNDERFLOW if exact else gamma(count + 3) * size + UNDERFLOW
    terms = tuple(
        own[0][1] if len(own) == 1 and own[0][0] == 1 else state.algebra.affine(own, ZERO)
        for own in parts
    )
    value = Value(terms, min(lows), max(highs), up(max(e)), up(max(r) + lost))
    held = before.written(value, garbage * (1 + gamma(count + 8)) + UNDERFLOW)
    return held.with_prefix_of(before) if shut else held


def _argument(
    block: BlockWeights, term: Term, register: int, state: State
) -> tuple[Value, list[Row]]:
    """v of a term, and its rows without the gate; two rows are v and -v."""
    rows = [block.unit(unit) for unit in term.units]
    if term.gate is not None:
        rows = [_without(block, row, term.gate) for row in rows]
    entries = [_entry(block, unit, register) for unit in term.units]
    if len(rows) == 2:
        sign = -1 if term.kind == "copy" else 1
        paired = entries[1].stored == sign * entries[0].stored
        paired = paired and entries[1].ideal == sign * entries[0].ideal
        if not (paired and rows[0] == rows[1].times(-1)):
            raise block.undecided(f"not a {term.kind}")
    read = state.read(rows[0])
    if len(rows) == 2:  # float64 may round v and -v in different orders
        read = replace(read, r=up(read.r + state.rounding(rows[1])))
    return read, rows


def _made(term: Term, v: Value, state: State) -> Value:
    """v, |v| or max(v, 0): none of them moves by more than v does."""
    if term.kind == "copy":
        return v
    low = max(v.low, ZERO)
    if term.kind == "relu":
        terms = tuple(state.algebra.relu(one) for one in v.terms)
        return Value(terms, low, max(v.high, ZERO), v.e, v.r)
    terms = tuple(state.algebra.abs(one) for one in v.terms)
    low = max(v.low, -v.high, ZERO)
    return Value(terms, low, max(-v.low, v.high), v.e, v.r)


def _clear(block: BlockWeights, claim: Clear, state: State) -> Held:
    """a - max(a, 0) + max(-a, 0) = 0, exactly, in every run and on every token."""
    own = Row({claim.register: 1.0}, {claim.register: Fraction(1)})
    first, second = (block.unit(unit) for unit in claim.units)
    factors = [_entry(block, unit, claim.register).stored for unit in claim.units]
    if first != own or first != second.times(-1) or factors != [-1.0, 1.0]:
        raise block.undecided("not a clear")
    return emptied(state)


def emptied(state: State) -> Held:
    """A register that is 0 on all tokens."""
    n = state.seq_len
    zero = state.algebra.constant(ZERO)
    return Held(
        (zero,) * n, ZERO, ZERO, ZERO, ZERO,
        np.zeros(n), (ZERO,) * n, np.zeros(state.prefix_len), ZERO,
    )  # fmt: skip


def _compared(
    block: BlockWeights, row: Row, register: int, sign: int, state: State
) -> tuple[Held, Value, Row]:
    """a and b of a row that reads sign (b - a), a the register itself."""
    a = state.held[register]
    if row.stored.get(register) != -sign or row.ideal.get(register) != -sign:
        raise block.undecided(f"a unit does not compare register {register}")
    rest = row.without(register).times(sign)
    return a, state.read(rest), rest


def _chosen(a: Value, b: Value, *, larger: bool) -> Value:
    """The larger or the smaller, without its terms: it moves by at most what both move by.

    float64 computes b - a, and adds it: two roundings more.
    """
    pick = max if larger else min
    e = max(a.e, b.e)
    run = max(a.e + a.r, b.e + b.r)
    lost = 8 * UNIT_ROUNDOFF * (a.size + b.size) + UNDERFLOW
    return Value((), pick(a.low, b.low), pick(a.high, b.high), e, up(run - e + lost))


def _extreme(block: BlockWeights, claim: Extreme, state: State) -> Held:
    """a + max(b - a, 0) = max(a, b), or a - max(a - b, 0) = min(a, b)."""
    sign = 1 if claim.larger else -1
    row = block.unit(claim.unit)
    a, b, rest = _compared(block, row, claim.register, sign, state)
    if _entry(block, claim.unit, claim.register).stored != float(sign):
        raise block.undecided("not a maximum" if claim.larger else "not a minimum")
    choose = state.algebra.maximum if claim.larger else state.algebra.minimum
    terms = tuple(choose([x, y]) for x, y in zip(a.terms, b.terms, strict=True))
    value = _chosen(a, _rounded_beside(state, rest, b, a), larger=claim.larger)
    value = replace(value, terms=terms)
    garbage = max(a.garbage, state.on_prefix(rest)) * (1 + gamma(2**20)) + UNDERFLOW
    return a.written(value, garbage)


def _rounded_beside(state: State, rest: Row, b: Value, a: Value) -> Value:
    """b, with what float64 loses by adding its terms and a in whatever order."""
    terms = len(rest.stored) + 1
    if terms <= 2 and rest.offset == 0.0:
        return b
    return replace(b, r=up(b.r + gamma(terms + 4) * (a.size + state.sizes(rest))))


def _exchange(block: BlockWeights, claim: Exchange, state: State, runs: SortRuns) -> Held:
    """a - max(a - b - g, 0) + max(b - a - g', 0): at most one gate is open on a token."""
    opened: list[np.ndarray] = []
    shut = True
    partners: list[Row] = []
    a = state.held[claim.register]
    b: Value = a
    for sign, unit, gate in zip((-1, 1), claim.units, claim.gates, strict=True):
        if _entry(block, unit, claim.register).stored != float(sign):
            raise block.undecided("not an exchange")
        row = _without(block, block.unit(unit), gate)
        _, b, rest = _compared(block, row, claim.register, sign, state)
        tokens, closed = _open(block, state, gate, row)
        opened.append(tokens)
        partners.append(rest)
        shut = shut and closed
    low, up_ = opened
    if partners[0] != partners[1] or bool((low & up_).any()):
        raise block.undecided("not an exchange")
    b = _rounded_beside(state, partners[0], b, a)
    smaller, larger = _chosen(a, b, larger=False), _chosen(a, b, larger=True)
    algebra = state.algebra
    terms = runs.exchanged(block, claim.register, a.terms, b.terms, (low, up_))
    if terms is None:
        terms = tuple(
            algebra.minimum([x, y]) if low[j] else algebra.maximum([x, y]) if up_[j] else x
            for j, (x, y) in enumerate(zip(a.terms, b.terms, strict=True))
        )
    e, run = max(a.e, b.e), max(smaller.e + smaller.r, larger.e + larger.r)
    value = Value(
        terms,
        min(a.low, smaller.low),
        max(a.high, larger.high),
        e,
        up(max(run - e, a.e + a.r - e, ZERO)),
    )
    sizes: Sequence[Fraction] = [state.on_prefix(block.unit(unit)) for unit in claim.units]
    held = a.written(value, (a.garbage + sum(sizes)) * (1 + gamma(2**20)) + UNDERFLOW)
    return held.with_prefix_of(a) if shut else held
