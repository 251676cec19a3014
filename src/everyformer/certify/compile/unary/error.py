"""One-dimensional proofs about unary heads.

A unary head has P prefix tokens with constant keys (a_k, b_k) and values v_k. A token whose
query reads t gets, with p_k(t) = e^(a_k t + b_k) / sum_l e^(a_l t + b_l),

    Phi(t) = sum_k p_k(t) v_k,

which stands for g(t), a `Reference`. `bound_head` proves how far both are apart on an
interval, and what else the error rules of a network need. Nothing is assumed about where
the tokens come from: whatever the numbers are, the bounds hold for them.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from everyformer.certify.compile.unary.cells import bound_error, cut
from everyformer.certify.compile.unary.reference import LARGEST, Reference, balls
from everyformer.certify.compile.unary.series import Tokens
from everyformer.certify.compile.unary.sizes import bound_sizes
from everyformer.certify.undecided import Undecided, require_finite
from everyformer.errors import InputError
from everyformer.numerics.curvature import round_down, round_up

MOST_TOKENS = 4096
"""More are refused."""


@dataclass(frozen=True, eq=False)
class Phi:
    """The prefix tokens of a unary head. Two are equal if their bytes are.

    Attributes:
        a: (P,) float64, factors of t in the scores; the arrays are copied.
        b: (P,), constants in the scores.
        v: (P,), values.
    """

    a: np.ndarray
    b: np.ndarray
    v: np.ndarray

    def __post_init__(self) -> None:
        """Copy the arrays, so that what was proved of them stays true."""
        for name in ("a", "b", "v"):
            array = np.array(getattr(self, name), copy=True)
            if array.dtype != np.float64:
                msg = (
                    f"{name} has the type {array.dtype}. A head's numbers are float64: "
                    "give those that the network runs with."
                )
                raise InputError(msg)
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @property
    def key(self) -> tuple[tuple[tuple[int, ...], bytes], ...]:
        """What decides whether two heads are equal."""
        return tuple((array.shape, array.tobytes()) for array in (self.a, self.b, self.v))

    def __eq__(self, other: object) -> bool:
        """Equal bytes."""
        return isinstance(other, Phi) and self.key == other.key

    def __hash__(self) -> int:
        """Of the bytes."""
        return hash(self.key)


@dataclass(frozen=True)
class HeadBound:
    """What is proved of a head for all t in [low, high].

    Attributes:
        error: At least |Phi - g|.
        slope: At least |Phi'|.
        moment: At least sum_k p_k (|a_k t| + |b_k| + |m| + 1) |v_k - Phi|, where m is the
            largest score, max_l(a_l t + b_l).
        mean: At least sum_k p_k |v_k|.
        score: At least max_l(|a_l t| + |b_l|).
        least_score: At most max_k(a_k t + b_k).
    """

    error: Fraction
    slope: Fraction
    moment: Fraction
    mean: Fraction
    score: Fraction
    least_score: Fraction


@lru_cache(maxsize=4096)
def bound_head(
    phi: Phi,
    reference: Reference,
    low: Fraction,
    high: Fraction,
    *,
    wanted: Fraction | None = None,
) -> HeadBound:
    """Prove bounds of a unary head on [low, high].

    Args:
        phi: The head.
        reference: What it stands for.
        low: The interval's lower end.
        high: Its upper end.
        wanted: An error that is good enough. Without it, the bound is at most a few
            per cent above the largest error.

    Returns:
        The bounds.

    Raises:
        Undecided: If no finite bound was found, or the question makes no sense.

    Example:
        >>> head = Phi(np.array([1.0, -1.0]), np.zeros(2), np.array([1.0, -1.0]))
        >>> tanh = Reference("tanh", None, (Fraction(1), Fraction(0)))
        >>> bound = bound_head(head, tanh, Fraction(-3), Fraction(3))
        >>> bool(bound.error < 1e-18), round(float(bound.slope), 1)
        (True, 1.0)
    """
    _require_sound(phi, low, high)
    reference.require_defined(low, high)
    ends = round_down(low), round_up(high)
    require_finite("unary", "the interval", *ends)
    with balls().working():
        tokens, own = Tokens.of(phi.a, phi.b, phi.v), reference.as_head()
        if own is not None:
            tokens = tokens.less(own)
        cells = cut(phi.a, phi.b, reference, *ends)
        goal = None if wanted is None else round_down(wanted)
        error, cells = bound_error(tokens, reference if own is None else None, cells, goal)
    slope, moment, mean = bound_sizes(phi.a, phi.b, phi.v, cells)
    require_finite("unary", "the head", error, slope, moment, mean)
    return HeadBound(
        Fraction(error),
        Fraction(slope),
        Fraction(moment),
        Fraction(mean),
        _largest_score(phi, low, high),
        _least_score(phi, low, high),
    )


def _require_sound(phi: Phi, low: Fraction, high: Fraction) -> None:
    count = phi.a.size
    if not (phi.a.shape == phi.b.shape == phi.v.shape == (count,)):
        shapes = f"{phi.a.shape}, {phi.b.shape}, {phi.v.shape}"
        raise Undecided("unary", f"keys and values have the shapes {shapes}")
    if not 1 <= count <= MOST_TOKENS:
        raise Undecided("unary", f"a head with {count} tokens; 1 to {MOST_TOKENS} are read")
    require_finite("unary", "the head's numbers", phi.a, phi.b, phi.v)
    largest = max(float(np.abs(array).max()) for array in (phi.a, phi.b, phi.v))
    if not largest <= LARGEST:
        raise Undecided("unary", f"a head has the number {largest:.3g}, beyond 2^256")
    if not low <= high:
        raise Undecided("unary", "the interval is empty")


def _largest_score(phi: Phi, low: Fraction, high: Fraction) -> Fraction:
    """max_k |a_k| T + |b_k| with T = max(|low|, |high|): exact."""
    largest = max(abs(low), abs(high))
    return max(
        abs(Fraction(a)) * largest + abs(Fraction(b))
        for a, b in zip(phi.a.tolist(), phi.b.tolist(), strict=True)
    )


def _least_score(phi: Phi, low: Fraction, high: Fraction) -> Fraction:
    """A lower bound of max_k (a_k t + b_k) on [low, high]; the least value, as a rule.

    The maximum of two of the lines is at most that of all. It is convex, so it is least at
    an end or where the lines meet. Begin with the lines that are largest at the ends;
    where they meet, a line that is larger there replaces the one with its sign of slope.
    """
    lines = [(Fraction(a), Fraction(b)) for a, b in zip(phi.a, phi.b, strict=True)]

    def best(t: Fraction) -> tuple[Fraction, Fraction]:
        return max(lines, key=lambda line: (line[0] * t + line[1], line[0]))

    def at(line: tuple[Fraction, Fraction], t: Fraction) -> Fraction:
        return line[0] * t + line[1]

    left, right = best(low), best(high)
    if left[0] >= 0 or right[0] <= 0:
        return _least_of_two(left, right, low, high)
    bound = _least_of_two(left, right, low, high)
    for _ in range(64):
        t = (left[1] - right[1]) / (right[0] - left[0])
        middle = best(t)
        if at(middle, t) <= at(left, t):
            break
        left, right = (middle, right) if middle[0] < 0 else (left, middle)
        bound = max(bound, _least_of_two(left, right, low, high))
        if middle[0] == 0:
            break
    return bound


def _least_of_two(
    one: tuple[Fraction, Fraction],
    other: tuple[Fraction, Fraction],
    low: Fraction,
    high: Fraction,
) -> Fraction:
    """The least value of the larger of two lines on [low, high]."""
    points = [low, high]
    if one[0] != other[0]:
        meeting = (one[1] - other[1]) / (other[0] - one[0])
        points += [meeting] if low < meeting < high else []
    return min(max(one[0] * t + one[1], other[0] * t + other[1]) for t in points)
