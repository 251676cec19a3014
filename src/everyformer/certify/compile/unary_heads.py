"""Heads over prefix tokens that compute functions of one number (G2).

Phi(t) = sum_k v_k e^(a_k t + b_k) / sum_k e^(a_k t + b_k), over the prefix tokens k; t is
what the query reads. `unary.py` proves |Phi - g| <= E on an interval.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from everyformer.certify.compile.claims import Column, Unary
from everyformer.certify.compile.heads import Written, multiplied, stored_in
from everyformer.certify.compile.rounded import LARGEST, SILENT, UNDERFLOW, down, up
from everyformer.certify.compile.rows import BlockWeights, Entry
from everyformer.certify.compile.unary.error import HeadBound, Phi, Reference, bound_head
from everyformer.certify.compile.values import Held, Row, State, Value
from everyformer.certify.rounding import gamma
from everyformer.numerics.intervals import Interval, IntervalArithmetic
from everyformer.numerics.rationals import rational_root

SQUARE, ROOT = Fraction(2), Fraction(-1, 2)
ANYTHING = Reference("pow", SQUARE, (Fraction(1), Fraction(0)))
"""A function that is defined everywhere, where only the head itself is asked about."""


@dataclass(frozen=True)
class Made:
    """A register that a head filled with F^s, F an affine form of the state before.

    Attributes:
        power: s of fn(F) = F^s, 2 or -1/2.
        form: F's coefficients, exact.
        offset: F's constant.
        misread: How far what the head reads may be from F.
        rounding: How much farther float64 may be.
        error: |register - (what is read)^s| in real arithmetic, at most.
        lost: How much farther float64 may be.
        before: The state that it was read from.
        held: The register after that.
    """

    power: Fraction
    form: dict[int, Fraction]
    offset: Fraction
    misread: Fraction
    rounding: Fraction
    error: Fraction
    lost: Fraction
    before: State
    held: Held


@dataclass(frozen=True)
class Keys:
    """The scores of a unary head: query t, keys a and b of the prefix tokens."""

    query: Row
    a: np.ndarray
    b: np.ndarray
    data: float


def unary(
    block: BlockWeights, head: int, claim: Unary, state: State
) -> tuple[Written, dict[int, Made]]:
    """A function of one number for each column that is used.

    |Phi(t^) - g(t)| <= E + L e_t. A score of a run is off by gamma_3 (|a_k t| + |b_k|). The
    largest one, m^, is subtracted from all, so that its own error cancels in the quotient;
    the difference loses u |s_k^ - m^|, and |m^| <= |m| + gamma_3 max_l(|a_l t| + |b_l|) <=
    |m| + 1 where that is not refused. So the logarithm of a weight is off by at most
    gamma_8 (|a_k t| + |b_k| + |m| + 1) <= 1/4, and Phi by twice its average with the
    factors |v_k - Phi|: float64 loses L r_t + 2 gamma_8 M + gamma_(2P+24) A.
    """
    keys = _keys(block, head, state)
    t = state.read(keys.query)
    result: Written = []
    made: dict[int, Made] = {}
    for component, entry, said in block.writes(head):
        column = claim.columns[component] if component < len(claim.columns) else None
        if column is None:
            raise block.undecided("a column without a claim writes")
        v, own = state.constants(said, prefix=True), state.constants(said)
        if v is None or own is None or own.any():
            raise block.undecided("the values of a unary head are not constants")
        found = _bounds(block, Phi(keys.a, keys.b, v), column, t)
        if not keys.data + SILENT <= found.least_score:
            raise block.undecided("data tokens are heard")
        if not gamma(8) * found.score <= Fraction(1, 16):
            raise block.undecided("the scores of a unary head are rounded too much")
        lost = 2 * gamma(8) * found.moment + UNDERFLOW
        lost += gamma(2 * (state.prefix_len + state.seq_len) + 24) * found.mean
        e = found.error + found.slope * t.e + UNDERFLOW
        r = found.slope * t.r + lost
        low, high = image(block, column, t.low, t.high)
        terms = tuple(_applied(state, column, term) for term in t.terms)
        value = Value(multiplied(state, terms, entry.ideal), low, high, up(e), up(r))
        held = stored_in(state, entry, value, said)
        result.append((entry.register, held))
        known = _made(column, entry, keys, t, state, found, lost, held)
        if known is not None:
            made[entry.register] = known
    return result, made


def _keys(block: BlockWeights, head: int, state: State) -> Keys:
    """One live query with constant keys, and at most one constant query 1 with others."""
    live: Keys | None = None
    b, data = np.zeros(state.prefix_len), 0.0
    fixed = 0
    for query, key in block.products(head):
        before, after = state.constants(key, prefix=True), state.constants(key)
        if before is None or after is None:
            raise block.undecided("the keys of a unary head are not constants")
        asked = state.constants(query)
        if asked is not None and bool((asked == 1.0).all()) and fixed == 0:
            fixed, b, data = 1, before, float(after.max())
        elif live is None and not after.any():
            live = Keys(query, before, b, data)
        else:
            raise block.undecided("the scores of a unary head are not a t + b")
    if state.prefix_len == 0 or (live is None and not fixed):
        raise block.undecided("a unary head has no live query")
    if live is None:  # a number: t is 0, whatever the keys
        return Keys(Row({}, {}), np.zeros(state.prefix_len), b, data)
    return Keys(live.query, live.a, b, data)


def _bounds(block: BlockWeights, phi: Phi, column: Column, t: Value) -> HeadBound:
    """E and all else where the t of any run may lie.

    Where the function is not defined there, E is about the ideal t alone.
    """
    reference = Reference(column.name, column.power, column.inner)
    wide = reach(t)
    near = wide if _is_defined(column, *wide) else (t.low, t.high)
    found = bound_head(phi, reference, *near)
    if near == wide:
        return found
    around = bound_head(phi, ANYTHING, *wide, wanted=LARGEST)
    return replace(around, error=found.error)


def reach(t: Value) -> tuple[Fraction, Fraction]:
    """Where the value of any run may lie."""
    far = t.e + t.r
    return down(t.low - far), up(t.high + far)


def _is_defined(column: Column, low: Fraction, high: Fraction) -> bool:
    """Whether fn(inner_0 t + inner_1) is defined for all t of [low, high]."""
    s = column.power
    if column.name == "log" or (s is not None and (s < 0 or s.denominator > 1)):
        return min(column.inner[0] * t + column.inner[1] for t in (low, high)) > 0
    return True


def _made(
    column: Column,
    entry: Entry,
    keys: Keys,
    t: Value,
    state: State,
    found: HeadBound,
    lost: Fraction,
    held: Held,
) -> Made | None:
    """The register as F^2, or as F^(-1/2), where the factor of its column allows it.

    With the factor W > 0 of the column and F' = inner_0 t + inner_1, W F'^2 is F^2 with
    F = h F' if W = h^2, and W F'^(-1/2) is F^(-1/2) with F = F' / W^2.
    """
    W, power = entry.ideal, column.power
    if power is None or not (
        W > 0 and entry.is_power_of_two and Fraction(entry.stored) == W
    ):
        return None
    if power == SQUARE:
        scale = rational_root(W)
        if scale is None:
            return None
    elif power == ROOT and _is_defined(column, *reach(t)):
        scale = 1 / (W * W)
    else:
        return None
    factor, query = scale * column.inner[0], keys.query
    return Made(
        power,
        {register: factor * c for register, c in query.ideal.items()},
        factor * query.ideal_offset + scale * column.inner[1],
        up(abs(factor) * state.misread(query)),
        up(abs(factor) * state.rounding(query)),
        up(W * found.error + UNDERFLOW),
        up(W * lost + UNDERFLOW),
        state,
        held,
    )


def _applied(state: State, column: Column, term: Any) -> Any:
    """fn(inner_0 t + inner_1) as a term."""
    algebra = state.algebra
    inner = algebra.affine([(column.inner[0], term)], column.inner[1])
    if column.power is not None:
        return algebra.power(inner, column.power)
    return getattr(algebra, column.name)(inner)


def image(
    block: BlockWeights, column: Column, low: Fraction, high: Fraction
) -> tuple[Fraction, Fraction]:
    """An interval that contains fn(inner_0 t + inner_1) for t in [low, high].

    Raises:
        Undecided: If the function is not defined, or not bounded, there.
    """
    arithmetic = IntervalArithmetic()
    scale, shift = column.inner
    ends = sorted((scale * low + shift, scale * high + shift))
    box = [arithmetic.constant(end) for end in ends]
    t = Interval(np.array([[box[0].low.item()]]), np.array([[box[1].high.item()]]))
    if column.power is not None:
        s = column.power
        if s.denominator == 2:
            if box[0].low.item() < 0 <= ends[0]:
                t = Interval(np.maximum(t.low, 0.0), t.high)
            t = arithmetic.sqrt(t)
            s = 2 * s
        found = arithmetic.pow(t, int(s))
    elif column.name == "logistic":
        one = arithmetic.constant(Fraction(1))
        down_ = arithmetic.exp(arithmetic.neg(t))
        found = arithmetic.div(one, arithmetic.add(one, down_))
    else:
        found = getattr(arithmetic, column.name)(t)
    least, most = found.low.item(), found.high.item()
    if not (np.isfinite(least) and np.isfinite(most)):
        why = (
            f"{column.name} on [{float(ends[0]):.3g}, {float(ends[1]):.3g}] is not bounded"
        )
        raise block.undecided(why)
    return Fraction(least), Fraction(most)
