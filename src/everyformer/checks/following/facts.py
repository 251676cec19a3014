"""What is known of a tensor inside a module, for all weights and all inputs."""

from dataclasses import dataclass, field, replace

import torch

Shape = tuple[int, ...]
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
        past: A dimension along which entry i depends on tokens 1 .. i alone.
        blocked: True where an entry may be -inf; None where this is not known.
        value: The tensor itself, if it depends on neither x nor theta.
    """

    shape: Shape
    depends: bool
    uniform: Dims = frozenset()
    sums_to_one: int | None = None
    moves: Dims | None = frozenset()
    zero: bool = False
    past: int | None = None
    blocked: torch.Tensor | None = None
    value: torch.Tensor | None = field(default=None, repr=False)
    copied: Dims = frozenset()

    def __post_init__(self) -> None:
        """A dimension of size 1 is uniform."""
        single = {k for k, size in enumerate(self.shape) if size == 1}
        copied = frozenset(self.copied | single)
        uniform = frozenset(self.uniform | copied)
        object.__setattr__(self, "uniform", uniform)
        object.__setattr__(self, "copied", copied if self.depends else uniform)

    @property
    def is_finite(self) -> bool:
        """Whether no entry can be -inf."""
        return self.blocked is not None and not bool(self.blocked.any())

    def dim(self, index: int) -> int:
        """A dimension counted from the front."""
        return index % len(self.shape) if self.shape else 0

    def with_shape(self, shape: Shape, **changes: object) -> "Facts":
        """The same facts of a tensor of another shape."""
        return replace(self, shape=shape, value=None, **changes)  # type: ignore[arg-type]


FINITE = torch.zeros((), dtype=torch.bool)


def tokens(shape: Shape) -> Facts:
    """The input x, shape (1, n, d)."""
    moves = frozenset({1})
    return Facts(shape, True, moves, None, moves, zero=True, past=1, blocked=FINITE)


def weight(shape: Shape) -> Facts:
    """A parameter or a buffer: any finite numbers."""
    return Facts(shape, False, blocked=FINITE)


def constant(value: torch.Tensor) -> Facts:
    """A tensor that is known."""
    same = frozenset(
        k
        for k in range(value.ndim)
        if value.numel() and bool((value == value.narrow(k, 0, 1)).all())
    )
    blocked: torch.Tensor | None = FINITE
    if value.is_floating_point():
        good = torch.isfinite(value) | (value == -torch.inf)
        blocked = value == -torch.inf if bool(good.all()) else None
    zero = not bool(value.any())
    return Facts(tuple(value.shape), False, same, zero=zero, blocked=blocked, value=value)


def unknown(shape: Shape, inputs: list[Facts]) -> Facts:
    """The result of an operation that has no rule."""
    if any(fact.depends for fact in inputs):
        return Facts(shape, True, moves=None)
    return Facts(shape, False)
