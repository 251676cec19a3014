"""Whether f is defined on the whole box: no division by 0, no logarithm of 0 (V8).

Signs decide most programs: e^t > 0, a^2 >= 0, |a| >= 0, and what sums and products of those
are. Where they do not, f is enclosed in float64 intervals on the box.
"""

from fractions import Fraction
from typing import Any

import numpy as np

from everyformer.certify.undecided import Undecided
from everyformer.numerics.expression import Expression, Node
from everyformer.numerics.intervals import Interval, IntervalArithmetic
from everyformer.targets.box import Box

POSITIVE, NONNEGATIVE, ANY = 2, 1, 0
"""What is known of a line's sign."""

PARTIAL = frozenset({"div", "log", "sqrt", "xlogx"})


def check_defined(f: Expression, box: Box) -> None:
    """See that every operation of f is defined for all x of the box.

    Raises:
        Undecided: Naming the first line of which that is not known.
    """
    signs = _signs(f, box)
    doubtful = [number for number, node in enumerate(f.nodes) if not _sure(node, signs)]
    if not doubtful:
        return
    ranges = _ranges(f, box)
    for number in doubtful:
        node = f.nodes[number]
        argument = ranges[node.args[-1] if node.op == "div" else node.args[0]]
        low, high = float(argument.low.item()), float(argument.high.item())
        fine = low > 0 or (node.op in {"div", "pow"} and high < 0)
        if node.op in {"sqrt", "xlogx"}:
            fine = low >= 0
        if not (fine and np.isfinite(low) and np.isfinite(high)):
            why = (
                f"line {number} takes {_word(node)} of what may be in "
                f"[{low:g}, {high:g}]: f may not be defined on the domain"
            )
            raise Undecided("target", why)


def _word(node: Node) -> str:
    return {"div": "a quotient", "pow": "a negative power", "log": "the logarithm"}.get(
        node.op, f"the {node.op}"
    )


def _sure(node: Node, signs: list[int]) -> bool:
    """Whether signs show that an operation is defined."""
    if node.op == "pow":
        return node.args[1] >= 0 or signs[node.args[0]] >= POSITIVE
    if node.op not in PARTIAL:
        return True
    line = node.args[1] if node.op == "div" else node.args[0]
    return signs[line] >= (NONNEGATIVE if node.op in {"sqrt", "xlogx"} else POSITIVE)


def _signs(f: Expression, box: Box) -> list[int]:
    """For every line whether it is > 0, >= 0, or neither is known."""
    signs: list[int] = []
    for node in f.nodes:
        signs.append(_sign(node, signs, f, box))
    return signs


def _sign(node: Node, signs: list[int], f: Expression, box: Box) -> int:
    op, args = node.op, node.args
    if op == "x":
        return _of_number(Fraction(box.lows[args[1]]))
    if op == "const":
        assert node.value is not None, "a constant has a value"  # noqa: S101
        return _of_number(node.value)
    own = [signs[k] for k in node.operands]
    if op == "exp":
        return POSITIVE
    if op == "pow":
        even = POSITIVE if own[0] == POSITIVE else NONNEGATIVE
        return even if args[1] % 2 == 0 and args[1] > 0 else own[0]
    if op == "abs":
        return max(own[0], NONNEGATIVE)
    if op == "add":
        return max(own) if min(own) >= NONNEGATIVE else ANY
    if op == "max":
        return max(own)
    if op in {"mul", "div", "min"}:
        if op == "mul" and args[0] == args[1]:
            return max(own[0], NONNEGATIVE)
        return min(own)
    if op in {"sqrt", "tanh"}:
        return own[0]
    return min(own[1:]) if op == "where" else ANY


def _of_number(value: Fraction) -> int:
    return POSITIVE if value > 0 else NONNEGATIVE if value == 0 else ANY


def _ranges(f: Expression, box: Box) -> list[Interval]:
    """Every line on the box, in float64 intervals."""
    arithmetic, ranges = IntervalArithmetic(), list[Interval]()
    for node in f.nodes:
        ranges.append(_range(node, ranges, arithmetic, box))
    return ranges


def _range(node: Node, ranges: list[Interval], arithmetic: Any, box: Box) -> Interval:
    if node.op == "x":
        i = node.args[1]
        return Interval(np.array([[box.lows[i]]]), np.array([[box.highs[i]]]))
    if node.op == "const":
        return arithmetic.constant(node.value)
    if node.op == "pow":
        return arithmetic.pow(ranges[node.args[0]], node.args[1])
    return getattr(arithmetic, node.op)(*(ranges[k] for k in node.args))
