"""Programs of two numbers in rationals, which is what they mean, and enclosed on boxes."""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from everyformer.numerics.enclosure import Enclosure, enclose, enclose_with_balls
from everyformer.numerics.expression import Expression, Node


class Exact:
    """The operations in rationals: the oracle."""

    @staticmethod
    def constant(value: Fraction) -> Fraction:
        return value

    @staticmethod
    def neg(a: Fraction) -> Fraction:
        return -a

    @staticmethod
    def add(a: Fraction, b: Fraction) -> Fraction:
        return a + b

    @staticmethod
    def sub(a: Fraction, b: Fraction) -> Fraction:
        return a - b

    @staticmethod
    def mul(a: Fraction, b: Fraction) -> Fraction:
        return a * b

    @staticmethod
    def div(a: Fraction, b: Fraction) -> Fraction:
        return a / b

    @staticmethod
    def abs(a: Fraction) -> Fraction:
        return abs(a)

    @staticmethod
    def min(a: Fraction, b: Fraction) -> Fraction:
        return min(a, b)

    @staticmethod
    def max(a: Fraction, b: Fraction) -> Fraction:
        return max(a, b)

    @staticmethod
    def pow(a: Fraction, k: int) -> Fraction:
        return a**k

    @staticmethod
    def where(c: Fraction, a: Fraction, b: Fraction) -> Fraction:
        return a if c > 0 else b


def exactly(expression: Expression, x: Sequence[Fraction]) -> Fraction:
    return expression.run(Exact, lambda j, i: x[j])[0][0]


def constant(value: Any) -> Node:
    return Node("const", value=Fraction(value))


def of_two(*lines: Node) -> Expression:
    """The last line as a function of (x, y), lines 0 and 1, in both outputs."""
    nodes = (Node("x", (0, 0)), Node("x", (1, 0)), *lines)
    last = len(nodes) - 1
    return Expression(2, 1, nodes, ((last,), (last,)))


def enclosed(expression: Expression, low: Any, high: Any, *, balls: bool) -> Enclosure:
    a, b = (np.array([[[float(v)] for v in end]]) for end in (low, high))
    run = enclose_with_balls if balls else enclose
    return run(expression, a, b, (a + b) / 2, (a + b) / 2)


def points(low: list[Fraction], high: list[Fraction]) -> list[tuple[Fraction, ...]]:
    """A lattice of the box; it meets all thresholds that are multiples of 1/16."""
    axes = [
        [a + (b - a) * Fraction(k, 6) for k in range(7)]
        for a, b in zip(low, high, strict=True)
    ]
    return list(itertools.product(*axes))
