"""Attention without a denominator: y_j = sum_k E_jk v_k, E_jk = exp(s_jk).

An exponential of a lane belongs to the pair (j, k) if token k is the only other token that
it depends on, or to (j, j) if it depends on no other. Unlike in a softmax, what depends on
j alone does not cancel: it is a query whose key is 1.
"""

from typing import TYPE_CHECKING

from everyformer.construct.compile.lifting.lines import (
    ONE,
    ZERO,
    Rational,
    Sum,
    single_token,
)
from everyformer.construct.compile.lifting.scores import bilinear
from everyformer.construct.compile.program import Form

if TYPE_CHECKING:
    from everyformer.construct.compile.lifting.lift import Lift

Weighted = dict[int, tuple[int, Sum]]
"""For each token k the exponential E_jk, and the lines that it is multiplied with."""


def extract(lift: "Lift", lanes: list[Sum]) -> tuple[Form, list[Sum]]:
    """Take one sum of this kind out of lanes: its form, and what is left."""
    nothing = Form.constant(0), lanes
    if lift.n == 1:
        return nothing
    rows = [_weighted(lift, j, lane) for j, lane in enumerate(lanes)]
    found = [row for row in rows if row is not None and row[0]]
    if len(found) < lift.n or max(len(row[0]) for row in found) < 2:
        return nothing
    values: dict[int, Sum] = {}
    for weighted, _ in found:
        for k, (_, terms) in weighted.items():
            if values.setdefault(k, terms) != terms:
                return nothing
    pairs: list[list[int | None]] = [[None] * lift.n for _ in range(lift.n)]
    for j, (weighted, _) in enumerate(found):
        for k, (E, _) in weighted.items():
            pairs[j][k] = lift.table.nodes[E].args[0]
    scores = bilinear(lift, pairs, exact=True)
    if scores is None:
        return nothing
    value = lift.sums([list(values.get(k, {}).items()) for k in range(lift.n)])
    lift.says(tuple(lines[0] for _, lines in found))
    made = lift.build.exponential_sum(scores.queries, scores.keys, value)
    used = [set(lines) for _, lines in found]
    left = [
        {line: c for line, c in lane.items() if line not in gone}
        for lane, gone in zip(lanes, used, strict=True)
    ]
    return made, left


def _weighted(lift: "Lift", j: int, lane: Sum) -> tuple[Weighted, list[int]] | None:
    """What a lane says of its exponentials, and the lines that say it.

    None if an exponential belongs to no pair, or two of them to the same.
    """
    table = lift.table
    found: Weighted = {}
    lines: list[int] = []
    for line, coefficient in lane.items():
        factor, factors = _factors(lift, line)
        own = [k for k in factors if table.nodes[k].op == "exp"]
        if not own:
            continue
        if len(own) > 1 or factors[own[0]] != 1:
            return None
        (E,) = own
        others = table.tokens[E] & ~(1 << j)
        k = j if not others else single_token(others)
        if k is None or (k != j and not table.tokens[E] >> j & 1):
            return None
        rest = {line: power for line, power in factors.items() if line != E}
        known, terms = found.setdefault(k, (E, {}))
        if known != E:
            return None
        value = table.product_of(rest) if rest else table.constant(ONE)
        terms[value] = terms.get(value, ZERO) + coefficient * factor
        lines.append(line)
    return found, lines


def _factors(lift: "Lift", line: int) -> tuple[Rational, dict[int, Rational]]:
    op = lift.table.nodes[line].op
    return lift.table.monomial(line) if op in {"mul", "div"} else (ONE, {line: ONE})
