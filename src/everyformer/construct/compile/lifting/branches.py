"""Choices: where(c, a, b) with branches that meet on the border c = 0.

Let c = alpha t + rest with a line t. With t+ and t- the numbers for which alpha t + rest is
max(c, 0) and min(c, 0), and t0 that for which it is 0,

    where(c > 0, a(t), b(t)) = a(t+) + b(t-) - a(t0),

if a(t0) = b(t0): for c > 0 the last two cancel, for c <= 0 the first and the last. If it is
not so the function jumps, and no network is near it in the sup norm. A line of c, that a
and b read, is replaced by its three values.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from everyformer.construct.compile.lifting.families import Family
from everyformer.construct.compile.lifting.lines import (
    ONE,
    ZERO,
    Rational,
    Sum,
    Table,
    ratio,
)
from everyformer.construct.compile.program import Form
from everyformer.errors import TargetError
from everyformer.numerics.rewriting import ancestors

if TYPE_CHECKING:
    from everyformer.construct.compile.lifting.lift import Lift

POINTS = 32
"""Random points at which branches are compared on the border."""

OPENED = frozenset({"pow", "exp", "mul", "div", "tanh"})
"""Lines that are not atoms of the verifier's terms: it cannot replace them."""

NEAR = 1e-9
"""Relative and absolute: branches that differ more do not meet."""

UNKNOWN = (
    ", and they could not be shown to be equal on the border. Write the condition with a "
    "number that the branches use (np.abs(x) > 0.5 and not x**2 > 0.25), or with "
    "np.maximum, np.minimum, np.clip or np.abs."
)
"""Nothing is known about the border."""

JUMP = (
    " that are not seen to agree on the border: where they differ it is not continuous, "
    "and no network is near it in the sup norm. Make the branches equal where the "
    "condition changes (a ramp instead of a step); leave out a condition that never "
    "changes on the domain."
)
"""A function that jumps, as far as is seen."""


def branch(lift: "Lift", family: Family) -> Form:
    """The form of a choice for each token.

    Raises:
        TargetError: If the branches do not meet.
    """
    replaced = {line: _continuous(lift, line) for line in set(family)}
    return lift.family([replaced[line] for line in family])


def has_choice(table: Table, factors: Mapping[int, Rational]) -> bool:
    """Whether a product has a factor that is a choice of 1 and 0."""
    return any(p == 1 and _is_choice(table, k) for k, p in factors.items())


def _is_choice(table: Table, line: int) -> bool:
    node = table.nodes[line]
    return node.op == "where" and {table.value(k) for k in node.args[1:]} == {0, 1}


def parts_of(table: Table, line: int) -> tuple[int, int, int]:
    """Condition and branches of a choice, or of a product with a choice of 1 and 0."""
    if table.nodes[line].op == "where":
        c, a, b = table.nodes[line].args
    else:
        coefficient, factors = table.monomial(line)
        choice = next(k for k, p in factors.items() if p == 1 and _is_choice(table, k))
        rest = table.product_of({k: p for k, p in factors.items() if k != choice})
        zero, value = table.constant(ZERO), table.sum_line([(rest, coefficient)])
        c, *branches = table.nodes[choice].args
        a, b = (value if table.value(k) else zero for k in branches)
    c = condition(table, c)
    if table.nodes[c].op == "neg":  # where(-c > 0, a, b) is where(c > 0, b, a) off c = 0
        return table.nodes[c].args[0], b, a
    return c, a, b


def merged(lift: "Lift", lane: Sum) -> Sum:
    """A sum in which choices with the same condition are one choice."""
    table = lift.table
    groups: dict[int, list[tuple[int, int, int]]] = {}
    for line in lane:
        node = table.nodes[line]
        if node.op == "where" or (
            node.op in {"mul", "div", "pow"} and has_choice(table, table.monomial(line)[1])
        ):
            c, a, b = parts_of(table, line)
            groups.setdefault(c, []).append((line, a, b))
    found = dict(lane)
    for c, choices in groups.items():
        if len(choices) > 1:
            a = table.sum_line([(a, lane[line]) for line, a, _ in choices])
            b = table.sum_line([(b, lane[line]) for line, _, b in choices])
            for line, _, _ in choices:
                del found[line]
            whole = table.make("where", c, a, b)
            found[whole] = found.get(whole, ZERO) + 1
    return found


def _without_signs(table: Table, line: int, t: int) -> int:
    """u^2 as |u|^2, however it is multiplied out, where t is the line |u|."""
    node = table.nodes[t]
    if node.op != "abs":
        return line
    (u,) = node.args
    for k in sorted(ancestors(table.nodes, (line,))):
        if table.nodes[k].op not in {"mul", "pow"}:
            continue
        c, factors = table.monomial(k)
        power = factors.get(u, ONE)
        if power % 2 == 0:
            others = {f: p for f, p in factors.items() if f != u}
            even = table.product_of({**others, t: power})
            line = table.replaced(line, k, table.sum_line([(even, c)]))
    return line


def _continuous(lift: "Lift", line: int) -> int:
    """A line without the choice."""
    table = lift.table
    c, a, b = parts_of(table, line)
    if table.nodes[c].op in {"min", "max"}:  # both conditions, or one of them
        p, q = table.nodes[c].args
        inner = table.make("where", q, a, b)
        both = table.nodes[c].op == "min"
        pair = (inner, b) if both else (a, inner)
        return _continuous(lift, table.make("where", p, *pair))
    terms, offset = table.opened([(c, ONE)], ())
    if not terms:
        return a if offset > 0 else b
    known = [given(table, side, (terms, offset), positive=True) for side in (a, b)]
    difference, rest = table.opened([(known[0], ONE), (known[1], -ONE)], ())
    factor = _multiple(difference, rest, terms, offset)
    zero = table.constant(ZERO)
    if factor is not None:  # a - b = factor c where c > 0
        above = table.make("max", c, zero)
        scaled = table.make("mul", above, table.constant(factor))
        return table.make("add", b, scaled)
    if _meet(lift, a, b):  # everywhere: two ways to write one function
        return b
    a, b = known[0], given(table, b, (terms, offset), positive=False)
    for t in terms:
        a, b = _without_signs(table, a, t), _without_signs(table, b, t)
    reads = ancestors(table.nodes, (a, b))
    seen = [k for k in reads & terms.keys() if table.nodes[k].op not in OPENED]
    t = max(seen, default=None)
    if t is not None:
        values = _border(table, c, t, terms)
        pieces = [
            table.replaced(a, t, values[0]),
            table.replaced(b, t, values[1]),
            table.replaced(a, t, values[2]),
            table.replaced(b, t, values[2]),
        ]
        if _meet(lift, pieces[2], pieces[3]):
            _check_rounding(lift, line, pieces[2], pieces[3])
            both = table.make("add", *pieces[:2])
            return table.make("sub", both, pieces[2])
    return _refuse(lift, line, UNKNOWN if t is None and difference else JUMP)


def given(
    table: Table, line: int, condition: tuple[Sum, Rational], *, positive: bool
) -> int:
    """A line that is the same where the condition is > 0, or where it is <= 0.

    A maximum or a choice in it is decided by the sign of d = alpha c + beta, as the
    verifier does (`certify/compile/algebra/choices.py`).
    """
    for k in sorted(ancestors(table.nodes, (line,)), reverse=True):
        node = table.nodes[k]
        if node.op == "where":
            d, first, second = parts_of(table, k)
            gap = table.opened([(d, ONE)], ())
        elif node.op in {"max", "min"}:
            gap = table.opened([(node.args[0], ONE), (node.args[1], -ONE)], ())
            first, second = node.args if node.op == "max" else node.args[::-1]
        else:
            continue
        sign = _sign(gap, condition, positive=positive, strict=node.op == "where")
        if sign:
            chosen = first if sign > 0 else second
            return given(
                table, table.replaced(line, k, chosen), condition, positive=positive
            )
    return line


def _sign(
    gap: tuple[Sum, Rational],
    condition: tuple[Sum, Rational],
    *,
    positive: bool,
    strict: bool,
) -> int:
    """1 or -1 if the condition's sign decides that of a sum, else 0."""
    (terms, delta), (others, gamma) = gap, condition
    alpha = ZERO if not terms else _multiple(terms, ZERO, others, ZERO)
    if alpha is None:
        return 0
    beta = delta - alpha * gamma
    up = alpha if positive else -alpha
    if up <= 0 and beta <= 0:
        return -1
    decided = up >= 0 and beta >= 0 and (not strict or beta > 0 or (positive and up > 0))
    return int(decided)


def _multiple(
    first: Sum, first_offset: Rational, second: Sum, second_offset: Rational
) -> Rational | None:
    """The number by which one sum is the other, if there is one."""
    if first.keys() != second.keys() or not second:
        return None
    key = next(iter(second))
    factor = ratio(first[key], second[key])
    same = all(first[k] == factor * c for k, c in second.items())
    return factor if same and first_offset == factor * second_offset else None


def _border(table: Table, c: int, t: int, terms: Sum) -> tuple[int, int, int]:
    """t + (max(c, 0) - c)/alpha, t + (min(c, 0) - c)/alpha, t - c/alpha."""
    zero = table.constant(ZERO)
    inverse = table.constant(ratio(1, terms[t]))
    found: list[int] = []
    for end in (
        table.make("max", c, zero),
        table.make("min", c, zero),
        zero,
    ):
        gap = table.make("sub", end, c)
        moved = table.make("mul", gap, inverse)
        found.append(table.make("add", t, moved))
    return found[0], found[1], found[2]


def condition(table: Table, line: int) -> int:
    """A condition without choices of 1 and 0: both is a minimum, either is a maximum."""
    node = table.nodes[line]
    if node.op in {"min", "max"}:
        parts = [condition(table, k) for k in node.args]
        if parts != list(node.args):
            return table.make(node.op, *parts)
    if node.op == "where":
        values = [table.value(k) for k in node.args[1:]]
        if values == [1, 0]:
            return condition(table, node.args[0])
        if values == [0, 1]:
            return table.make("neg", condition(table, node.args[0]))
    return line


def _meet(lift: "Lift", a: int, b: int) -> bool:
    """Whether two lines agree at random points of the box."""
    if a == b:
        return True
    rng = np.random.default_rng(0)
    first, second = lift.table.evaluate((a, b), lift.box, lift.n, POINTS, rng)
    return bool(np.allclose(first, second, rtol=NEAR, atol=NEAR))


def _check_rounding(lift: "Lift", line: int, a: int, b: int) -> None:
    """Refuse branches that meet but for the rounding of their constants.

    Raises:
        TargetError: If they are two numbers on the border.
    """
    terms, gap = lift.table.opened([(a, ONE), (b, -ONE)], ())
    if gap and not terms:
        why = (
            f" that differ by {float(abs(gap)):.1e} on the border: constants are the "
            "float64 numbers that they are, and 0.9 * 0.6 - 0.24 is not 0.3. That is a "
            "jump, and nothing is proved across it. Take numbers that float64 holds (3/8 "
            "for 0.3), or write it with np.maximum, np.minimum, np.clip or np.interp."
        )
        _refuse(lift, line, why)


def _refuse(lift: "Lift", line: int, why: str) -> NoReturn:
    msg = f"{lift.name} chooses between two branches at line {line}{why}"
    raise TargetError(msg)
