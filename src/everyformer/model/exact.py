"""Exact evaluation: the forward pass in integers.

A hardmax network with rational weights maps rationals to rationals. Fractions would do, but
each operation on them takes a greatest common divisor. Instead the network is conjugated by
a scaling: with D a common denominator of everything that is added to the state,

    g'(y) = D g(y / D)

is a network of the same form whose weights are integers, and it runs on Python ints.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np

from everyformer.model.activation import PiecewiseLinear
from everyformer.model.stacks import FeedForwardStack, Stage
from everyformer.numerics.rationals import common_denominator, exact_array


def additive_arrays(stage: Stage) -> list[np.ndarray]:
    """Arrays measured in the units of the state, whose denominators D must cover."""
    found: list[np.ndarray] = []
    if stage.attention is not None:
        found.append(stage.attention.b_Q)
    layer = stage.feed_forward
    if layer is not None:
        found += [layer.b_1, layer.b_2]
        if layer.phi is not None:
            found += [layer.phi.breaks, layer.phi.intercepts]
            constant = _is_step(layer.phi)
            found.append(np.moveaxis(layer.W_2, -1, 1)[constant])
    return found


def _is_step(phi: PiecewiseLinear) -> np.ndarray:
    """Which units (layers, r) are piecewise constant."""
    return np.asarray((phi.slopes == 0).all(axis=-1), dtype=bool)


def in_units(stages: tuple[Stage, ...], denominator: int) -> tuple[Stage, ...]:
    """The stages conjugated by multiplication with the denominator D.

    Biases are multiplied by D. A piecewise constant phi keeps its values, and W_2 takes the
    factor D; any other phi is conjugated itself, phi'(t) = D phi(t / D), which multiplies
    its intercepts and breaks and leaves slopes and W_2 alone. ReLU commutes with D > 0.
    """
    return tuple(_stage_in_units(stage, denominator) for stage in stages)


def _stage_in_units(stage: Stage, D: int) -> Stage:
    attention, layer = stage.attention, stage.feed_forward
    if attention is not None:
        attention = replace(
            attention,
            W_Q=exact_array(attention.W_Q),
            b_Q=_scaled(attention.b_Q, D),
            W_K=exact_array(attention.W_K),
            W_V=exact_array(attention.W_V),
            W_O=exact_array(attention.W_O),
        )
    return replace(
        stage,
        attention=attention,
        feed_forward=None if layer is None else _feed_forward_in_units(layer, D),
    )


def _feed_forward_in_units(layer: FeedForwardStack, D: int) -> FeedForwardStack:
    scale, phi = np.array([[1]], dtype=object), layer.phi
    if phi is not None:
        step = _is_step(phi)  # [layers, r]
        # As Python ints: int64 would overflow in silence.
        large, one = np.array(D, dtype=object), np.array(1, dtype=object)
        scale = np.where(step, large, one)
        factor = np.where(step, one, large)[..., None]
        phi = replace(
            phi,
            breaks=_scaled(phi.breaks, D),
            slopes=exact_array(phi.slopes),
            intercepts=exact_array(exact_array(phi.intercepts) * factor),
        )
    return FeedForwardStack(
        W_1=exact_array(layer.W_1),
        b_1=_scaled(layer.b_1, D),
        W_2=exact_array(exact_array(layer.W_2) * scale[:, None, :]),
        b_2=_scaled(layer.b_2, D),
        phi=phi,
    )


def _scaled(array: np.ndarray, D: int) -> np.ndarray:
    return exact_array(exact_array(array) * D)


def unit_for(stages: tuple[Stage, ...], *others: np.ndarray) -> int:
    """The denominator D that makes the additive weights and the given arrays integers."""
    weights = [array for stage in stages for array in additive_arrays(stage)]
    return common_denominator([*weights, *others])


def from_units(state: np.ndarray, denominator: int) -> np.ndarray:
    """Back from multiples of 1/D to numbers."""
    return exact_array(state * Fraction(1, denominator))
