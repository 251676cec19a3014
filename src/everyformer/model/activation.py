"""The set Phi of the modified class: piecewise linear, at most three pieces."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class PiecewiseLinear:
    """One function of Phi for every layer of a stack and every hidden unit.

        phi(t) = a_1 t + b_1   left of c_1,
                 a_2 t + b_2   between c_1 and c_2,
                 a_3 t + b_3   right of c_2,            c_1 < c_2

    Phi asks that at least one piece is constant. Jumps are allowed; `closed` says on which
    side of a jump the break itself lies.

    Attributes:
        breaks: c_1, c_2; shape (layers, r, 2).
        closed: True where the break belongs to the piece on its left; (layers, r, 2).
        slopes: a_1, a_2, a_3; shape (layers, r, 3).
        intercepts: b_1, b_2, b_3; shape (layers, r, 3).
    """

    breaks: np.ndarray
    closed: np.ndarray
    slopes: np.ndarray
    intercepts: np.ndarray

    def __post_init__(self) -> None:
        """Check the shapes, the order of the breaks and that a piece is constant."""
        layers, r = self.breaks.shape[:2]
        shapes = {
            "breaks": (layers, r, 2),
            "closed": (layers, r, 2),
            "slopes": (layers, r, 3),
            "intercepts": (layers, r, 3),
        }
        wrong = [
            f"{name} has shape {getattr(self, name).shape}, expected {shape}"
            for name, shape in shapes.items()
            if getattr(self, name).shape != shape
        ]
        if not wrong and not (self.breaks[..., 0] < self.breaks[..., 1]).all():
            wrong.append("c_1 < c_2 does not hold everywhere")
        if not wrong and not (self.slopes == 0).any(axis=-1).all():
            wrong.append("a function has no constant piece")
        if wrong:  # not by `refuse`: the tests' type checks of lists draw random numbers,
            # which hypothesis forbids where it makes these functions
            msg = f"Not a stack of functions in Phi: {'; '.join(wrong)}."
            raise ValueError(msg)

    @classmethod
    def repeat(
        cls, layers: int, *, breaks: Any, closed: Any, slopes: Any, intercepts: Any
    ) -> "PiecewiseLinear":
        """The same function in every layer, or one for each; r = 1.

        The arrays are views, not copies.

        Args:
            layers: How many layers.
            breaks: c_1, c_2 (an array of the kind of number wanted).
            closed: Two booleans.
            slopes: a_1, a_2, a_3.
            intercepts: b_1, b_2, b_3.
        """
        return cls(
            breaks=np.broadcast_to(breaks, (layers, 1, 2)),
            closed=np.broadcast_to(np.asarray(closed, dtype=bool), (layers, 1, 2)),
            slopes=np.broadcast_to(slopes, (layers, 1, 3)),
            intercepts=np.broadcast_to(intercepts, (layers, 1, 3)),
        )

    def apply(self, layer: int, t: np.ndarray) -> np.ndarray:
        """phi of one layer, entry by entry; t has shape (..., r)."""
        first, second = self.breaks[layer, :, 0], self.breaks[layer, :, 1]
        closed = self.closed[layer]
        left = (t < first) | ((t == first) & closed[:, 0])
        middle = (t < second) | ((t == second) & closed[:, 1])
        left, middle = left.astype(bool), middle.astype(bool)
        a, b = self.slopes[layer], self.intercepts[layer]
        return np.where(
            left,
            a[:, 0] * t + b[:, 0],
            np.where(middle, a[:, 1] * t + b[:, 1], a[:, 2] * t + b[:, 2]),
        )
