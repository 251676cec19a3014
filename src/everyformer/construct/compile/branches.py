"""Choices: where(c, a, b) with branches that meet on the border c = 0.

Let c = alpha t + rest with a line t. With t+ and t- the numbers for which alpha t + rest is
max(c, 0) and min(c, 0), and t0 that for which it is 0,

    where(c > 0, a(t), b(t)) = a(t+) + b(t-) - a(t0),

if a(t0) = b(t0): for c > 0 the last two cancel, for c <= 0 the first and the last. If it is
not so the function jumps, and no network is near it in the sup norm. A line of c, that a
and b read, is replaced by its three values.
"""

from fractions import Fraction
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from everyformer.construct.compile.families import Family
from everyformer.construct.compile.lines import ONE, Sum, Table
from everyformer.construct.compile.program import Form
from everyformer.errors import TargetError

if TYPE_CHECKING:
    from everyformer.construct.compile.lift import Lift

POINTS = 32
"""Random points at which branches are compared on the border."""

NEAR = 1e-9
"""Relative and absolute: branches that differ more do not meet."""


def branch(lift: "Lift", family: Family) -> Form:
    """The form of a choice for each token.

    Raises:
        TargetError: If the branches do not meet.
    """
    replaced = {line: _continuous(lift, line) for line in set(family)}
    return lift.family([replaced[line] for line in family])


def _continuous(lift: "Lift", line: int) -> int:
    """A line without the choice."""
    table = lift.table
    c, a, b = table.nodes[line].args
    c = condition(table, c)
    terms, offset = table.opened([(c, ONE)], ())
    difference, rest = table.opened([(a, ONE), (b, -ONE)], ())
    factor = _multiple(difference, rest, terms, offset)
    zero = table.constant(Fraction(0))
    if factor is not None:  # a - b = factor c
        above = table.make("max", *sorted((c, zero)))
        scaled = table.make("mul", *sorted((above, table.constant(factor))))
        return table.make("add", *sorted((b, scaled)))
    reads = table.ancestors((a, b))
    for t in sorted(terms, reverse=True):
        if t not in reads and len(terms) > 1:
            continue
        values = _border(table, c, t, terms)
        pieces = [
            table.replaced(a, t, values[0]),
            table.replaced(b, t, values[1]),
            table.replaced(a, t, values[2]),
            table.replaced(b, t, values[2]),
        ]
        if not _meet(lift, pieces[2], pieces[3]):
            refuse(lift, line)
        both = table.make("add", *sorted(pieces[:2]))
        return table.make("sub", both, pieces[2])
    refuse(lift, line)


def _multiple(
    first: Sum, first_offset: Fraction, second: Sum, second_offset: Fraction
) -> Fraction | None:
    """The number by which one sum is the other, if there is one."""
    if first.keys() != second.keys() or not second:
        return None
    key = next(iter(second))
    factor = first[key] / second[key]
    same = all(first[k] == factor * c for k, c in second.items())
    return factor if same and first_offset == factor * second_offset else None


def _border(table: Table, c: int, t: int, terms: Sum) -> tuple[int, int, int]:
    """t + (max(c, 0) - c)/alpha, t + (min(c, 0) - c)/alpha, t - c/alpha."""
    zero = table.constant(Fraction(0))
    inverse = table.constant(1 / terms[t])
    found: list[int] = []
    for end in (
        table.make("max", *sorted((c, zero))),
        table.make("min", *sorted((c, zero))),
        zero,
    ):
        gap = table.make("sub", end, c)
        moved = table.make("mul", *sorted((gap, inverse)))
        found.append(table.make("add", *sorted((t, moved))))
    return found[0], found[1], found[2]


def condition(table: Table, line: int) -> int:
    """A condition without choices of 1 and 0: both is a minimum, either is a maximum."""
    node = table.nodes[line]
    if node.op in {"min", "max"}:
        parts = [condition(table, k) for k in node.args]
        if parts != list(node.args):
            return table.make(node.op, *sorted(parts))
    if node.op == "where":
        values = [table.value(k) for k in node.args[1:]]
        if values == [1, 0]:
            return condition(table, node.args[0])
        if values == [0, 1]:
            return table.make("neg", condition(table, node.args[0]))
    return line


def _meet(lift: "Lift", a: int, b: int) -> bool:
    """Whether two lines agree at random points of the box."""
    if a == b or lift.table.colours[a] == lift.table.colours[b]:
        return True
    rng = np.random.default_rng(0)
    first, second = lift.table.evaluate((a, b), lift.box, lift.n, POINTS, rng)
    return bool(np.allclose(first, second, rtol=NEAR, atol=NEAR))


def refuse(lift: "Lift", line: int) -> NoReturn:
    """Say that a function jumps.

    Raises:
        TargetError: Always.
    """
    msg = (
        f"{lift.name} chooses between two branches at line {line} that differ on the "
        "border: it is not continuous there, and no network is near it in the sup norm. "
        "Make the branches equal where the condition changes (a ramp instead of a step)."
    )
    raise TargetError(msg)
