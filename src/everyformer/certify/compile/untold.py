"""An algebra that tells nothing: for errors alone, without what is computed."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any


class Untold:
    """Every term is the same."""

    def constant(self, value: Fraction) -> None:
        """A number."""

    def entry(self, j: int, i: int) -> None:
        """x[j][i]."""

    def affine(self, terms: Sequence[tuple[Fraction, Any]], offset: Fraction) -> None:
        """A sum of multiples."""

    def mul(self, a: Any, b: Any) -> None:
        """A product."""

    def power(self, a: Any, s: Fraction) -> None:
        """A power."""

    def maximum(self, terms: Sequence[Any]) -> None:
        """The largest."""

    def minimum(self, terms: Sequence[Any]) -> None:
        """The smallest."""

    def softmax_average(self, scores: Sequence[Any], values: Sequence[Any]) -> None:
        """An average."""

    def _of_one(self, a: Any) -> None:
        """A function of one number."""

    abs = relu = exp = log = sin = cos = tanh = logistic = _of_one
