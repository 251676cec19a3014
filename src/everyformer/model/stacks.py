"""The layers of many blocks as a few arrays, and runs of blocks with a name.

Tokens are rows: x has shape (*batch, n, d). Yun et al. write tokens as columns, X = xᵀ;
the weights below are the paper's own matrices, applied to rows as `x @ W.T`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from everyformer.errors import refuse
from everyformer.files.description import StageKind
from everyformer.model.activation import PiecewiseLinear


@dataclass(frozen=True)
class AttentionStack:
    """The attention layers of a run of blocks, stacked along the first axis.

        Attn(X) = X + sum_i W_O^i W_V^i X . softmax[(W_K^i X)^T (W_Q^i X - b_Q^i 1^T)]

    With b_V and gain, on rows and with C_jk = gain_{j-k} (Luo et al. 2022, Equation 8):

        Attn(x) = x + sum_i (softmax[..] * C^i) (x W_V^iT + b_V^i) W_O^iT

    With a mask token k attends to the tokens of A_k alone: scores and softmax run over them
    (Yun et al. 2020b).

    Attributes:
        W_Q: Shape (layers, h, m, d).
        b_Q: Shape (layers, h, m); subtracted from the query, as the paper writes it.
        W_K: Shape (layers, h, m, d).
        W_V: Shape (layers, h, m, d).
        W_O: Shape (layers, h, d, m).
        b_V: Shape (layers, h, m), added to the value; None for 0.
        gain: Shape (layers, h, 2n - 1): the entry (j - k) + (n - 1) multiplies the weight
            with which token j attends to token k. None for 1 everywhere.
        mask: Booleans, shape (layers, n, n): whether token j (row) attends to token k. None
            for all of them.
    """

    W_Q: np.ndarray
    b_Q: np.ndarray
    W_K: np.ndarray
    W_V: np.ndarray
    W_O: np.ndarray
    b_V: np.ndarray | None = None
    gain: np.ndarray | None = None
    mask: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Check that the shapes belong together, and that every token attends."""
        layers, h, m, d = self.W_Q.shape
        shapes: dict[str, tuple[int, ...]] = {
            "b_Q": (layers, h, m),
            "W_K": (layers, h, m, d),
            "W_V": (layers, h, m, d),
            "W_O": (layers, h, d, m),
        }
        if self.b_V is not None:
            shapes["b_V"] = (layers, h, m)
        if self.gain is not None:
            offsets = self.gain.shape[-1] if self.gain.ndim else 0
            shapes["gain"] = (layers, h, offsets + 1 - offsets % 2)  # an odd number
        if self.mask is not None:
            n = self.mask.shape[-1] if self.mask.ndim else 0
            shapes["mask"] = (layers, n, n)
        check_shapes(self, shapes)
        if self.mask is not None and self.mask.dtype != np.bool_:
            msg = f"mask has dtype {self.mask.dtype}; a mask is made of booleans."
            raise ValueError(msg)
        if self.mask is not None and not self.mask.any(axis=-1).all():
            layer, token = (int(i) for i in np.argwhere(~self.mask.any(axis=-1))[0])
            msg = (
                f"In layer {layer + 1} token {token + 1} attends to no token, and softmax "
                "over nothing is not defined. Let every token attend to itself."
            )
            raise ValueError(msg)

    @property
    def relative(self) -> bool:
        """Whether a layer has what only URPE has: a gain, or a bias of the value."""
        return self.b_V is not None or self.gain is not None

    @property
    def layers(self) -> int:
        """How many layers are stacked."""
        return self.W_Q.shape[0]


@dataclass(frozen=True)
class FeedForwardStack:
    """The feed-forward layers of a run of blocks, stacked along the first axis.

        FF(X) = X + W_2 phi(W_1 X + b_1 1^T) + b_2 1^T

    Attributes:
        W_1: Shape (layers, r, d).
        b_1: Shape (layers, r).
        W_2: Shape (layers, d, r).
        b_2: Shape (layers, d).
        phi: The functions of the modified class, or None for ReLU.
    """

    W_1: np.ndarray
    b_1: np.ndarray
    W_2: np.ndarray
    b_2: np.ndarray
    phi: PiecewiseLinear | None = None

    def __post_init__(self) -> None:
        layers, r, d = self.W_1.shape
        check_shapes(self, {"b_1": (layers, r), "W_2": (layers, d, r), "b_2": (layers, d)})
        if self.phi is not None and self.phi.breaks.shape[:2] != (layers, r):
            msg = (
                f"phi is given for (layers, r) = {self.phi.breaks.shape[:2]}, "
                f"but W_1 has {(layers, r)}."
            )
            raise ValueError(msg)

    @property
    def layers(self) -> int:
        """How many layers are stacked."""
        return self.W_1.shape[0]


def toeplitz(gain: np.ndarray, n: int) -> np.ndarray:
    """C of n tokens, C_jk = gain_{j-k}: shape (..., 2n - 1) to (..., n, n).

    Example:
        >>> toeplitz(np.array([-2, -1, 0, 1, 2]), 3)
        array([[ 0, -1, -2],
               [ 1,  0, -1],
               [ 2,  1,  0]])
    """
    if gain.shape[-1] != 2 * n - 1:
        msg = (
            f"A gain has {gain.shape[-1]} entries, but {n} tokens have {2 * n - 1} offsets "
            "j - k. Give one entry for each."
        )
        raise ValueError(msg)
    offset = np.subtract.outer(np.arange(n), np.arange(n)) + n - 1
    return gain[..., offset]


def check_shapes(held: object, expected: dict[str, tuple[int, ...]]) -> None:
    """Refuse arrays of other shapes.

    Raises:
        ValueError: With all of them.
    """
    wrong = [
        f"{name} has shape {getattr(held, name).shape}, expected {shape}"
        for name, shape in expected.items()
        if getattr(held, name).shape != shape
    ]
    refuse(f"{type(held).__name__}", wrong, ValueError)


def below(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays whose names begin so, by the rest of their names."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


@dataclass(frozen=True)
class Stage:
    """A run of blocks that does one step of a proof.

    A missing half stands for blocks whose W_O or W_2, b_2 are zero: the skip connection
    makes that half the identity.

    Attributes:
        name: What the stage does, e.g. "selective shifts".
        source: The result it implements, e.g. "Yun et al. 2020, Lemma 6".
        attention: The attention layers, or None.
        feed_forward: The feed-forward layers, or None.
        kind: Which step of a construction it is, for programs that look inside; None for
            steps that nobody looks for.
    """

    name: str
    source: str
    attention: AttentionStack | None = None
    feed_forward: FeedForwardStack | None = None
    kind: StageKind | None = None

    @classmethod
    def of(
        cls,
        kind: StageKind,
        source: str,
        attention: AttentionStack | None = None,
        feed_forward: FeedForwardStack | None = None,
    ) -> "Stage":
        """A stage of a kind, by that name."""
        return cls(kind, source, attention, feed_forward, kind)

    def __post_init__(self) -> None:
        if self.attention is None and self.feed_forward is None:
            msg = f"Stage {self.name!r} has neither attention nor feed-forward layers."
            raise ValueError(msg)
        if (
            self.attention is not None
            and self.feed_forward is not None
            and self.attention.layers != self.feed_forward.layers
        ):
            msg = (
                f"Stage {self.name!r} stacks {self.attention.layers} attention and "
                f"{self.feed_forward.layers} feed-forward layers; a block has one of each."
            )
            raise ValueError(msg)

    @property
    def blocks(self) -> int:
        """How many blocks the stage has."""
        half = self.attention or self.feed_forward
        assert half is not None, "checked in __post_init__"  # noqa: S101
        return half.layers

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every array of the stage with a dotted name, in a fixed order."""
        for half_name in ("attention", "feed_forward"):
            half = getattr(self, half_name)
            if half is None:
                continue
            for field in fields(half):
                value = getattr(half, field.name)
                if isinstance(value, np.ndarray):
                    yield f"{half_name}.{field.name}", value
        if self.feed_forward is not None and self.feed_forward.phi is not None:
            phi = self.feed_forward.phi
            for field in fields(phi):
                yield f"feed_forward.phi.{field.name}", getattr(phi, field.name)

    @classmethod
    def from_arrays(
        cls,
        name: str,
        source: str,
        arrays: dict[str, np.ndarray],
        kind: StageKind | None = None,
    ) -> "Stage":
        """The inverse of `arrays`."""
        attention, feed_forward, phi = (
            {name: a for name, a in below(prefix, arrays).items() if "." not in name}
            for prefix in ("attention.", "feed_forward.", "feed_forward.phi.")
        )
        return cls(
            name,
            source,
            AttentionStack(**attention) if attention else None,
            FeedForwardStack(**feed_forward, phi=PiecewiseLinear(**phi) if phi else None)
            if feed_forward
            else None,
            kind,
        )
