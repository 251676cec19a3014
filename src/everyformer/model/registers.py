"""What stands around the blocks of a network whose width is not that of its tokens.

A *register* is one named feature of a token inside the network. The blocks work on w
registers; a linear read-in makes them from a token of width d and from its position, and a
linear read-out makes the result from them:

    registers of token j = W_in x_j + start_j,      result of token j = W_out (registers)

Prefix tokens are constant register vectors that stand before the sequence: the blocks see
P + n tokens, and the result is read from the last n.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from everyformer.model.stacks import below, check_shapes
from everyformer.numerics.rationals import exact_array

PREFIX = "registers."
"""How the names of these arrays begin."""


@dataclass(frozen=True)
class Registers:
    """The read-in, the read-out, and prefix tokens.

    Attributes:
        W_in: Shape (w, d).
        start: Shape (n, w): what depends on the position alone.
        W_out: Shape (d, w).
        prefix: Shape (P, w), tokens that stand before the sequence; None for none.
    """

    W_in: np.ndarray
    start: np.ndarray
    W_out: np.ndarray
    prefix: np.ndarray | None = None

    def __post_init__(self) -> None:
        w, d = self.W_in.shape
        n = len(self.start)
        shapes: dict[str, tuple[int, ...]] = {"start": (n, w), "W_out": (d, w)}
        if self.prefix is not None:
            shapes["prefix"] = (len(self.prefix), w)
        check_shapes(self, shapes)

    @property
    def width(self) -> int:
        """w, the number of registers."""
        return self.W_in.shape[0]

    @property
    def num_prefix(self) -> int:
        """P, the number of prefix tokens."""
        return 0 if self.prefix is None else len(self.prefix)

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every array with its name in a file, in a fixed order."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                yield PREFIX + field.name, value

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "Registers | None":
        """The inverse of `arrays`; None if there are no such arrays."""
        own = below(PREFIX, arrays)
        return cls(**own) if own else None

    def read_in(self, x: np.ndarray) -> np.ndarray:
        """Tokens (*batch, n, d) to registers (*batch, P + n, w), in x's kind of number."""
        kept = self if x.dtype != object else self._exact()
        state = kept.beside_prefix(x)
        if kept.prefix is None:
            return state
        before = np.broadcast_to(kept.prefix, (*x.shape[:-2], *kept.prefix.shape))
        return np.concatenate([before, state], axis=-2)

    def beside_prefix(self, x: np.ndarray) -> np.ndarray:
        """Tokens (*batch, n, d) to their registers (*batch, n, w) alone."""
        return x @ self.W_in.T + self.start

    def read_out(self, state: np.ndarray) -> np.ndarray:
        """Registers (*batch, P + n, w) to results (*batch, n, d)."""
        kept = self if state.dtype != object else self._exact()
        return state[..., self.num_prefix :, :] @ kept.W_out.T

    def _exact(self) -> "Registers":
        arrays = {name: exact_array(array) for name, array in self.arrays()}
        exact = Registers.from_arrays(arrays)
        assert exact is not None, "there are always arrays"  # noqa: S101
        return exact
