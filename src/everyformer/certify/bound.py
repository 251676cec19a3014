"""A proved number: its value, why it holds, where that is proved, and its parts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from everyformer.numerics.rationals import format_up, parse_rational, power_up

MAX_DEPTH = 8
MAX_TERMS = 1000
"""Levels and terms of a tree of bounds that is read from a file."""

_P_NORM = re.compile(r"p-norm [0-9]{1,4}(/[1-9][0-9]?)?")


@dataclass(frozen=True)
class Bound:
    """An upper bound. Printing rounds up; arithmetic on bounds is exact or rounds up.

    Attributes:
        value: The bound, an exact rational.
        reason: What is bounded, and why, in words.
        source: Where it is proved.
        terms: The bounds it was made from.
        rule: How: "sum", or "p-norm" with the exponent; empty for a bound of its own.

    Example:
        >>> print(Bound(Fraction(1, 3), "a third", "arithmetic"))
        <= 3.334e-01  a third [arithmetic]
        >>> Bound(Fraction(1, 3), "a third") <= 0.34
        True
    """

    value: Fraction
    reason: str
    source: str = ""
    terms: tuple["Bound", ...] = ()
    rule: str = ""

    def __post_init__(self) -> None:
        """A bound on a size is not negative."""
        if self.value < 0:
            msg = f"A bound on a size cannot be {self.value} ({self.reason})."
            raise ValueError(msg)

    def __le__(self, other: int | float | Fraction) -> bool:
        """Whether the bound is at most a number, exactly."""
        return self.value <= Fraction(other)

    def __gt__(self, other: int | float | Fraction) -> bool:
        """Whether the bound exceeds a number, exactly."""
        return self.value > Fraction(other)

    @classmethod
    def p_norm(cls, terms: Sequence["Bound"], p: Fraction, reason: str) -> "Bound":
        """(sum of p-th powers)^(1/p) of bounds on disjoint parts of a domain.

        Example:
            >>> parts = [Bound(Fraction(3), "a"), Bound(Fraction(4), "b")]
            >>> Bound.p_norm(parts, Fraction(2), "both").value
            Fraction(5, 1)
        """
        total = sum((power_up(term.value, p) for term in terms), start=Fraction(0))
        value = power_up(total, 1 / p)
        return cls(value, reason, "", tuple(terms), f"p-norm {p}")

    @classmethod
    def total(cls, terms: Sequence["Bound"], reason: str) -> "Bound":
        """The sum of bounds, by the triangle inequality.

        Example:
            >>> parts = [Bound(Fraction(3), "a"), Bound(Fraction(4), "b")]
            >>> Bound.total(parts, "both").value
            Fraction(7, 1)
        """
        value = sum((term.value for term in terms), start=Fraction(0))
        return cls(value, reason, "", tuple(terms), "sum")

    def is_consistent(self) -> bool:
        """Whether every number follows from its terms by its rule."""
        if not all(term.is_consistent() for term in self.terms):
            return False
        if self.rule == "":
            return not self.terms
        if self.rule == "sum":
            return self.value == Bound.total(self.terms, "").value
        if not _P_NORM.fullmatch(self.rule):
            return False
        exponent = Fraction(self.rule.partition(" ")[2])
        if exponent < 1:
            return False
        try:
            return self.value == Bound.p_norm(self.terms, exponent, "").value
        except OverflowError:
            return False

    def to_json(self) -> dict[str, Any]:
        """A JSON object; the value is the text of an exact rational."""
        return {
            "value": str(self.value),
            "reason": self.reason,
            "source": self.source,
            "rule": self.rule,
            "terms": [term.to_json() for term in self.terms],
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Bound":
        """The inverse of `to_json`, for trees of limited depth and size.

        Raises:
            ValueError: If it is not such a tree.
        """
        return cls._read(values, MAX_DEPTH, [MAX_TERMS])

    @classmethod
    def _read(cls, values: dict[str, Any], depth: int, left: list[int]) -> "Bound":
        left[0] -= 1
        if depth == 0 or left[0] < 0:
            msg = (
                f"the tree of bounds has more than {MAX_DEPTH} levels or {MAX_TERMS} terms"
            )
            raise ValueError(msg)
        return cls(
            parse_rational(values["value"]),
            str(values["reason"]),
            str(values["source"]),
            tuple(cls._read(term, depth - 1, left) for term in values["terms"]),
            str(values["rule"]),
        )

    def format_value(self) -> str:
        """The value in decimal, rounded up."""
        return format_up(self.value)

    def __str__(self) -> str:
        """The tree of bounds, one line each, parts indented."""
        source = f" [{self.source}]" if self.source else ""
        lines = [f"<= {self.format_value()}  {self.reason}{source}"]
        for term in self.terms:
            lines += [f"  {line}" for line in str(term).splitlines()]
        return "\n".join(lines)
