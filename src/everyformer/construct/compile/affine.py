"""Affine combinations with exact coefficients: linear operations of a program cost nothing.

A form combines steps of a program, a reading combines registers of a network.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
A = TypeVar("A", bound="Affine[Any]")


@dataclass(frozen=True, eq=False, slots=True)
class Affine(Generic[K]):
    """offset + the sum of coefficient times what it is a coefficient of.

    Attributes:
        terms: Coefficients, not zero.
        offset: A constant, the same for all tokens.
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
