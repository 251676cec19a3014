"""Stacks of feed-forward layers of the modified class, r = 1, made from columns."""

from typing import Any

import numpy as np

from everyformer.model.activation import PiecewiseLinear
from everyformer.model.stacks import FeedForwardStack
from everyformer.numerics.kinds import NumberKind


def phi_layers(
    kind: NumberKind,
    *,
    W_1: np.ndarray,
    W_2: np.ndarray,
    phi: PiecewiseLinear,
    b_1: np.ndarray | None = None,
) -> FeedForwardStack:
    """Layers Z += W_2 phi(W_1 Z + b_1), one row each.

    Args:
        kind: The kind of number of the weights.
        W_1: Rows, shape (layers, d) or (d,) for all layers alike.
        W_2: Columns, shape (layers, d) or (d,) for all layers alike.
        phi: The activations of the layers.
        b_1: Shape (layers,); None for 0.
    """
    layers, d = len(phi.breaks), W_1.shape[-1]
    b_1 = kind.array([0] * layers) if b_1 is None else b_1
    W_1 = np.broadcast_to(W_1, (layers, d))
    W_2 = np.broadcast_to(W_2, (layers, d))
    return FeedForwardStack(
        W_1=W_1[:, None, :],
        b_1=b_1[:, None],
        W_2=W_2[:, :, None],
        b_2=np.broadcast_to(kind.array(0), (layers, d)),
        phi=phi,
    )


def window(
    kind: NumberKind,
    layers: int,
    *,
    breaks: Any,
    closed: Any,
    inside: Any,
    outside: Any,
) -> PiecewiseLinear:
    """The same phi in all layers: one line between two breaks, another outside.

    Args:
        kind: The kind of number.
        layers: How many layers.
        breaks: c_1, c_2.
        closed: Where the breaks belong to the piece on their left.
        inside: (slope, intercept) between the breaks.
        outside: (slope, intercept) elsewhere.
    """
    (a, b), (a_out, b_out) = inside, outside
    return PiecewiseLinear.repeat(
        layers,
        breaks=kind.array(breaks),
        closed=closed,
        slopes=kind.array([a_out, a, a_out]),
        intercepts=kind.array([b_out, b, b_out]),
    )


def ray(kind: NumberKind, layers: int, *, left: Any, right: Any) -> PiecewiseLinear:
    """The same phi in all layers: two lines that meet or jump at 0.

    Args:
        kind: The kind of number.
        layers: How many layers.
        left: (slope, intercept) for t < 0.
        right: (slope, intercept) for t >= 0.
    """
    (a_1, b_1), (a_2, b_2) = left, right
    return PiecewiseLinear.repeat(
        layers,
        breaks=kind.array([0, 1]),
        closed=(False, False),
        slopes=kind.array([a_1, a_2, a_2]),
        intercepts=kind.array([b_1, b_2, b_2]),
    )


def units(kind: NumberKind, d: int) -> np.ndarray:
    """The unit vectors e_1 .. e_d as rows."""
    return kind.array(np.eye(d, dtype=int))
