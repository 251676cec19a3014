"""Tensors whose entries are affine functions of the tokens, with exact coefficients.

An entry is sum_k a_k x_k + b over all numbers x_k of a sequence. Each coefficient is a
rational number and a radius around it: 0 for all that is exact, and what exp leaves open.
Sums and multiples of such entries are such entries again; a product is one where a factor
is constant, and 0 times anything is 0. Everything else is refused: nothing is guessed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from everyformer.numerics.balls import BallArithmetic

PRECISION = 128


class NotAffine(Exception):  # noqa: N818
    """An operation that does not keep entries affine in the tokens."""


@dataclass(frozen=True)
class Forms:
    """A tensor of affine functions.

    Attributes:
        centre: Coefficients, the constant last, Fractions of shape (*shape, N + 1).
        radius: How far the true coefficients may be from them, of the same shape.
    """

    centre: np.ndarray
    radius: np.ndarray

    @classmethod
    def constant(cls, values: np.ndarray, entries: int) -> "Forms":
        """Numbers that do not depend on the tokens.

        Raises:
            NotAffine: If one is not finite.
        """
        centre = np.full((*values.shape, entries + 1), Fraction(0), dtype=object)
        flat = values.reshape(-1).tolist()
        if not all(np.isfinite(value) for value in flat):
            raise NotAffine("a number is not finite")
        constants = np.empty(len(flat), dtype=object)
        constants[:] = [Fraction(value) for value in flat]
        centre[..., -1] = constants.reshape(values.shape)
        return cls(centre, np.full_like(centre, Fraction(0)))

    @classmethod
    def tokens(cls, shape: Sequence[int]) -> "Forms":
        """The tokens themselves."""
        count = int(np.prod(shape))
        centre = np.full((count, count + 1), Fraction(0), dtype=object)
        for k in range(count):
            centre[k, k] = Fraction(1)
        centre = centre.reshape(*shape, count + 1)
        return cls(centre, np.full_like(centre, Fraction(0)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor."""
        return self.centre.shape[:-1]

    @property
    def entries(self) -> int:
        """N, how many numbers a sequence has."""
        return self.centre.shape[-1] - 1

    @property
    def is_constant(self) -> np.ndarray:
        """Which entries do not depend on the tokens."""
        moving = (self.centre[..., :-1] != 0) | (self.radius[..., :-1] != 0)
        return np.asarray(~np.asarray(moving.any(axis=-1), dtype=bool))

    def __add__(self, other: "Forms") -> "Forms":
        return Forms(self.centre + other.centre, self.radius + other.radius)

    def __neg__(self) -> "Forms":
        return Forms(-self.centre, self.radius)

    def __mul__(self, other: "Forms") -> "Forms":
        """The product, entry by entry.

        Raises:
            NotAffine: If both factors of an entry depend on the tokens.
        """
        first, second = _broadcast(self, other)
        left, right = first.is_constant, second.is_constant
        if not (left | right).all():
            raise NotAffine("two numbers that depend on the tokens are multiplied")
        by_left = second.scaled(first.centre[..., -1:], first.radius[..., -1:])
        by_right = first.scaled(second.centre[..., -1:], second.radius[..., -1:])
        which = left[..., None]
        return Forms(
            np.where(which, by_left.centre, by_right.centre),
            np.where(which, by_left.radius, by_right.radius),
        )

    def scaled(self, factor: np.ndarray, radius: np.ndarray) -> "Forms":
        """Times numbers that are known within a radius."""
        sizes = abs(self.centre) * radius + self.radius * (abs(factor) + radius)
        return Forms(self.centre * factor, sizes)

    def matmul(self, other: "Forms") -> "Forms":
        """The product of matrices, (.., i, k) times (.., k, j)."""
        left = Forms(self.centre[..., None, :], self.radius[..., None, :])
        right = Forms(np.expand_dims(other.centre, -4), np.expand_dims(other.radius, -4))
        return (left * right).sum((-2,))

    def sum(self, axes: Sequence[int], *, keep: bool = False) -> "Forms":
        """Over axes of the tensor."""
        rank = len(self.shape)
        where = tuple(axis % rank for axis in axes)
        return Forms(
            np.asarray(self.centre.sum(axis=where, keepdims=keep)),
            np.asarray(self.radius.sum(axis=where, keepdims=keep)),
        )

    def constants(self, what: str) -> tuple[np.ndarray, np.ndarray]:
        """Centres and radii of entries that do not depend on the tokens.

        Raises:
            NotAffine: If one does.
        """
        if not self.is_constant.all():
            raise NotAffine(f"{what} of numbers that depend on the tokens")
        return _exact(self.centre[..., -1]), _exact(self.radius[..., -1])

    def with_constants(self, low: np.ndarray, high: np.ndarray) -> "Forms":
        """Constants between two ends instead."""
        centre = np.full((*low.shape, self.entries + 1), Fraction(0), dtype=object)
        radius = np.full_like(centre, Fraction(0))
        centre[..., -1], radius[..., -1] = (low + high) / 2, (high - low) / 2
        return Forms(centre, radius)

    def exp(self) -> "Forms":
        """e to the power of constants: exact at 0, else enclosed."""
        ends = [
            _exp(c, r) for c, r in zip(*map(np.ravel, self.constants("exp")), strict=True)
        ]
        low, high = (_array([end[k] for end in ends], self.shape) for k in (0, 1))
        return self.with_constants(low, high)

    def softmax(self, axis: int) -> "Forms":
        """Of constants: 1/m exactly where all are equal, else enclosed."""
        centre, radius = self.constants("softmax")
        axis %= len(self.shape)
        first = np.take(centre, [0], axis=axis)
        if (centre == first).all() and not (radius != 0).any():
            share = Fraction(1, centre.shape[axis])
            equal = np.full(self.shape, share, dtype=object)
            return self.with_constants(equal, equal)
        top = centre.max(axis=axis, keepdims=True)
        powers = self.with_constants(centre - top - radius, centre - top + radius).exp()
        middle, off = powers.constants("softmax")
        low, high = middle - off, middle + off
        others_low = low.sum(axis=axis, keepdims=True) - low
        others_high = high.sum(axis=axis, keepdims=True) - high
        return self.with_constants(low / (low + others_high), high / (high + others_low))

    def relu(self) -> "Forms":
        """max(0, .) of constants."""
        centre, radius = self.constants("ReLU")
        zero = np.full_like(centre, Fraction(0))
        return self.with_constants(
            _exact(np.maximum(centre - radius, zero)),
            _exact(np.maximum(centre + radius, zero)),
        )

    def inverse(self) -> "Forms":
        """1 / . of constants that are not 0."""
        centre, radius = self.constants("a quotient")
        low, high = centre - radius, centre + radius
        if np.asarray((low <= 0) & (high >= 0)).any():
            raise NotAffine("a quotient by a number that may be 0")
        return self.with_constants(_exact(1 / high), _exact(1 / low))


def _exact(values: Any) -> np.ndarray:
    """Fractions as an array: numpy makes a bare one of an array without axes."""
    return np.asarray(values, dtype=object)


def _broadcast(a: Forms, b: Forms) -> tuple[Forms, Forms]:
    shape = (*np.broadcast_shapes(a.shape, b.shape), a.entries + 1)

    def wide(one: Forms) -> Forms:
        return Forms(np.broadcast_to(one.centre, shape), np.broadcast_to(one.radius, shape))

    return wide(a), wide(b)


def _array(values: Sequence[Fraction], shape: tuple[int, ...]) -> np.ndarray:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found.reshape(shape)


def _exp(centre: Fraction, radius: Fraction) -> tuple[Fraction, Fraction]:
    """Two rationals around e^t for all t within a radius of the centre."""
    if centre == 0 and radius == 0:
        return Fraction(1), Fraction(1)
    arithmetic = BallArithmetic(PRECISION)
    with arithmetic.working():
        low = arithmetic.ends(arithmetic.exp(arithmetic.constant(centre - radius)))[0]
        high = arithmetic.ends(arithmetic.exp(arithmetic.constant(centre + radius)))[1]
    if not (0 <= low <= high < np.inf):
        raise NotAffine("exp of a number that is too large")
    return Fraction(low), Fraction(high)
