"""Affine combinations with exact coefficients: equal terms cancel, whatever their size is.

A line of an expression combines other lines, a form of a program its steps, and a reading
the registers of a network.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar

MAX_TERMS = 64
"""Terms of a combination that is followed in an expression; longer ones are left alone."""

MAX_BITS = 2048
"""Of its coefficients."""

K = TypeVar("K", bound=Hashable)
A = TypeVar("A", bound="Affine[Any]")


@dataclass(frozen=True, eq=False, slots=True)
class Affine(Generic[K]):
    """offset + the sum of coefficient times what it is a coefficient of, exactly.

    Attributes:
        terms: Coefficients, not zero.
        offset: A constant, the same for all tokens.

    Example:
        >>> x, y = Affine.of("x"), Affine.of("y", 2)
        >>> ((x + y) - x).terms
        {'y': Fraction(2, 1)}
    """

    terms: Mapping[K, Fraction]
    offset: Fraction = Fraction(0)

    @classmethod
    def of(cls: type[A], one: K, coefficient: Fraction | int = 1) -> A:
        """A multiple of one."""
        value = Fraction(coefficient)
        return cls({one: value} if value else {})

    @classmethod
    def constant(cls: type[A], value: Fraction | int) -> A:
        """A number."""
        return cls({}, Fraction(value))

    def __add__(self: A, other: A) -> A:
        """The sum."""
        terms = dict(self.terms)
        for one, coefficient in other.terms.items():
            terms[one] = terms.get(one, Fraction(0)) + coefficient
        kept = {one: value for one, value in terms.items() if value}
        return type(self)(kept, self.offset + other.offset)

    def __mul__(self: A, factor: Fraction | int) -> A:
        """A multiple."""
        value = Fraction(factor)
        if not value:
            return type(self)({})
        terms = {one: value * c for one, c in self.terms.items()}
        return type(self)(terms, value * self.offset)

    __rmul__ = __mul__

    def __neg__(self: A) -> A:
        """The opposite."""
        return self * -1

    def __sub__(self: A, other: A) -> A:
        """The difference."""
        return self + other * -1

    def __iter__(self) -> Iterator[K]:
        """What takes part."""
        return iter(self.terms)

    def over(self: A, other: A) -> Fraction | None:
        """c with self = c other, if there is one; other is not constant."""
        k, v = next(iter(other.terms.items()))
        c = self.terms.get(k, Fraction(0)) / v
        multiple = other * c
        same = (self.terms, self.offset) == (multiple.terms, multiple.offset)
        return c if c and same else None

    @property
    def short(self) -> bool:
        """Whether it has few terms, and coefficients of few digits."""
        numbers = (self.offset, *self.terms.values())
        bits = max(v.numerator.bit_length() + v.denominator.bit_length() for v in numbers)
        return len(self.terms) <= MAX_TERMS and bits <= MAX_BITS


def combined(op: str, a: A | None, b: A | None) -> A | None:
    """The result of an operation on two combinations, if it is one and short.

    Args:
        op: Of an expression. For "neg" only the first one counts.
        a: The first one, if there is one.
        b: The second.
    """
    if a is None or b is None:
        return None
    result = None
    if op in {"add", "sub"}:
        result = a + b if op == "add" else a - b
    elif op == "neg":
        result = -a
    elif op == "mul" and not (a.terms and b.terms):
        result = a * b.offset if a.terms else b * a.offset
    elif op == "div" and not b.terms and b.offset:
        result = a * (1 / b.offset)
    return result if result is not None and result.short else None
