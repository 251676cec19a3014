"""Affine forms with exact coefficients: equal terms cancel, whatever their size is."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

MAX_TERMS = 64
"""Terms of a form that is followed; longer ones are left alone."""

MAX_BITS = 2048
"""Of its coefficients."""


@dataclass(frozen=True)
class Affine:
    """constant + sum of coefficients times terms, exactly; no coefficient is 0.

    Example:
        >>> x, y = Affine(terms={"x": Fraction(1)}), Affine(terms={"y": Fraction(2)})
        >>> x.plus(y).plus(x.scaled(Fraction(-1))) == y
        True
    """

    constant: Fraction = Fraction(0)
    terms: Mapping[Hashable, Fraction] = field(default_factory=dict[Hashable, Fraction])

    def scaled(self, factor: Fraction) -> "Affine":
        """The form times a number."""
        if not factor:
            return Affine()
        return Affine(
            self.constant * factor, {k: v * factor for k, v in self.terms.items()}
        )

    def plus(self, other: "Affine") -> "Affine":
        """The sum of both."""
        total = dict(self.terms)
        for k, v in other.terms.items():
            total[k] = total.get(k, Fraction(0)) + v
        kept = {k: v for k, v in total.items() if v}
        return Affine(self.constant + other.constant, kept)

    def over(self, other: "Affine") -> Fraction | None:
        """c with self = c other, if there is one; other is not constant."""
        k, v = next(iter(other.terms.items()))
        c = self.terms.get(k, Fraction(0)) / v
        return c if c and self == other.scaled(c) else None

    @property
    def short(self) -> bool:
        """Whether it has few terms, and coefficients of few digits."""
        numbers = (self.constant, *self.terms.values())
        bits = max(v.numerator.bit_length() + v.denominator.bit_length() for v in numbers)
        return len(self.terms) <= MAX_TERMS and bits <= MAX_BITS


def combined(op: str, a: Affine | None, b: Affine | None) -> Affine | None:
    """The result of an operation on two forms, if it is one and short.

    Args:
        op: Of an expression. For "neg" only the first form counts.
        a: The first form, if there is one.
        b: The second.
    """
    if a is None or b is None:
        return None
    result = None
    if op in {"add", "sub"}:
        result = a.plus(b if op == "add" else b.scaled(Fraction(-1)))
    elif op == "neg":
        result = a.scaled(Fraction(-1))
    elif op == "mul" and not (a.terms and b.terms):
        result = a.scaled(b.constant) if a.terms else b.scaled(a.constant)
    elif op == "div" and not b.terms and b.constant:
        result = a.scaled(1 / b.constant)
    return result if result is not None and result.short else None
