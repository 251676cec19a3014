"""A proved number: its value, why it holds, where that is proved, and its parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from everyformer.numerics.rationals import format_up, power_up


@dataclass(frozen=True)
class Bound:
    """An upper bound. Printing rounds up; arithmetic on bounds is exact or rounds up.

    Attributes:
        value: The bound, an exact rational.
        reason: What is bounded, and why, in words.
        source: Where it is proved.
        terms: The bounds it was made from.

    Example:
        >>> print(Bound(Fraction(1, 3), "a third", "arithmetic"))
        <= 3.334e-01  a third [arithmetic]
    """

    value: Fraction
    reason: str
    source: str = ""
    terms: tuple["Bound", ...] = ()

    def __post_init__(self) -> None:
        """A bound on a size is not negative."""
        if self.value < 0:
            msg = f"A bound on a size cannot be {self.value} ({self.reason})."
            raise ValueError(msg)

    @classmethod
    def p_norm(cls, terms: Sequence["Bound"], p: Fraction, reason: str) -> "Bound":
        """(sum of p-th powers)^(1/p) of bounds on disjoint parts of a domain.

        Example:
            >>> parts = [Bound(Fraction(3), "a"), Bound(Fraction(4), "b")]
            >>> Bound.p_norm(parts, Fraction(2), "both").value
            Fraction(5, 1)
        """
        total = sum((power_up(term.value, p) for term in terms), start=Fraction(0))
        return cls(power_up(total, 1 / p), reason, "", tuple(terms))

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
