"""What is known of a tensor inside a module, for all weights and all inputs."""

import math
from dataclasses import dataclass, field

import torch

from everyformer.checks.following.hearing import Heard, Hearing, Shape

Dims = frozenset[int]


@dataclass(frozen=True)
class Facts:
    """Statements about a tensor T(x, theta), x the tokens and theta all weights.

    Every field but `shape` may be weaker than the truth, never stronger.

    Attributes:
        shape: Its shape.
        depends: Whether it may depend on x.
        uniform: Dimensions along which T is constant whenever all tokens of x are equal.
        copied: Dimensions along which T is constant always; all of `uniform`, where T does
            not depend on x.
        sums_to_one: A dimension along which T sums to 1.
        moves: Dimensions that are permuted when the tokens are, T(P x) = P T(x) along all
            of them; None where this is not known.
        zero: Whether T is 0 for x = 0.
        affine: Whether T, if it is finite, is an affine function of v where all tokens of x
            are v; True where it does not depend on x. `is_affine` asks for both.
        heard: Which tokens an entry may depend on; None where this is not known.
        rows: Dimensions of size n along which tokens lie in their order, whatever was added
            to them; None where this is not known.
        means: Whether every sum over tokens on the way to T had weights with sum 1: with
            such sums and their weights held fixed, the entry at i_1, .., i_r along `rows`
            depends on the tokens i_1, .., i_r alone. So it is False where `rows` is None.
            Weights themselves (`weighs`) are fit for such a sum and nothing else.
        blocked: True where an entry may be -inf, all others being finite but for overflow;
            None where this is not known.
        hidden: True where an entry is -inf for certain; None where this is not known.
        silent: True where an entry is 0 for certain; None where this is not known.
        least: A lower bound of all entries.
        value: The tensor itself, if it depends on neither x nor theta.
        kinds: Numbers that are equal only where entries are, for all theta, if it does not
            depend on x; None where this is not known, or not asked for (`mirror`).
    """

    shape: Shape
    depends: bool
    uniform: Dims = frozenset()
    sums_to_one: int | None = None
    moves: Dims | None = frozenset()
    zero: bool = False
    heard: Heard | None = None
    blocked: torch.Tensor | None = None
    value: torch.Tensor | None = field(default=None, repr=False)
    copied: Dims = frozenset()
    rows: Dims | None = frozenset()
    means: bool = True
    least: float = -math.inf
    hidden: torch.Tensor | None = None
    silent: torch.Tensor | None = None
    kinds: torch.Tensor | None = field(default=None, repr=False)
    affine: bool = False

    def __post_init__(self) -> None:
        """What follows from other fields.

        A dimension of size 1 is uniform. What does not depend on x hears no token and no
        tokens lie along it; where tokens lie nobody knows, they may have been added up.
        """
        single = {k for k, size in enumerate(self.shape) if size == 1}
        copied = frozenset(self.copied | single)
        uniform = frozenset(self.uniform | copied)
        object.__setattr__(self, "uniform", uniform)
        object.__setattr__(self, "copied", copied if self.depends else uniform)
        object.__setattr__(self, "heard", self.heard if self.depends else ())
        object.__setattr__(self, "rows", self.rows if self.depends else frozenset())
        object.__setattr__(self, "means", self.means and self.rows is not None)
        object.__setattr__(self, "affine", self.affine or not self.depends)

    @property
    def is_finite(self) -> bool:
        """Whether no entry can be -inf."""
        return self.blocked is not None and not bool(self.blocked.any())

    @property
    def is_affine(self) -> bool:
        """Whether it is a finite affine function of v where all tokens are v."""
        return self.affine and self.is_finite

    @property
    def weighs(self) -> bool:
        """Whether these are weights over tokens: each hears all tokens that it weighs."""
        return self.sums_to_one is not None and self.sums_to_one in (self.rows or ())

    def dim(self, index: int) -> int:
        """A dimension counted from the front."""
        return index % len(self.shape) if self.shape else 0


FINITE = torch.zeros((), dtype=torch.bool)


def tokens(shape: Shape) -> Facts:
    """The input x, shape (1, n, d)."""
    here = frozenset({1})
    itself = (Hearing(1, torch.eye(shape[1], dtype=torch.bool)),)
    return Facts(
        shape, True, here, None, here, True, itself, FINITE, rows=here, affine=True
    )


def weight(shape: Shape) -> Facts:
    """A parameter: any finite numbers."""
    return Facts(shape, False, blocked=FINITE)


def _is_same(value: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether all numbers are equal, signs of zeros too: 1 / 0 is not 1 / -0."""
    if value.is_complex():
        value, other = torch.view_as_real(value), torch.view_as_real(other)
    signs = torch.signbit(value) == torch.signbit(other)
    return bool(((value == other) & signs).all())


def constant(value: torch.Tensor) -> Facts:
    """A tensor that is known."""
    same = frozenset(
        k
        for k in range(value.ndim)
        if value.numel() and _is_same(value, value.narrow(k, 0, 1))
    )
    blocked: torch.Tensor | None = FINITE
    if value.is_complex():
        blocked = FINITE if bool(torch.isfinite(value).all()) else None
    elif value.is_floating_point():
        good = torch.isfinite(value) | (value == -torch.inf)
        blocked = value == -torch.inf if bool(good.all()) else None
    zero = not bool(value.any())
    least = -math.inf
    if blocked is not None and value.numel() and not value.is_complex():
        least = float(value.min())
    return Facts(
        tuple(value.shape),
        False,
        same,
        zero=zero,
        blocked=blocked,
        value=value,
        least=least,
        hidden=value == -torch.inf if value.is_floating_point() else None,
        silent=value == 0,
    )


def unknown(shape: Shape, inputs: list[Facts]) -> Facts:
    """The result of an operation that has no rule."""
    if any(fact.depends for fact in inputs):
        return Facts(shape, True, moves=None, rows=None, means=False)
    return Facts(shape, False)
