"""Lemma 9: four ReLUs agree with phi off the ramps, for every kind of phi."""

from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer.construct.shifts.soften import four_relus, relu_coefficients, sharpen
from everyformer.model.activation import PiecewiseLinear
from everyformer.model.forward import feed_forward_layer, hardmax, softmax
from everyformer.model.stacks import AttentionStack, FeedForwardStack

RAMP = 2.0**-6
small = st.integers(-6, 6).map(lambda k: k / 2)


@st.composite
def functions(draw: st.DrawFn) -> PiecewiseLinear:
    """Phi with at least one constant piece, breaks at least 1 apart."""
    first = draw(small)
    slopes = draw(st.lists(small, min_size=3, max_size=3))
    slopes[draw(st.integers(0, 2))] = 0.0
    return PiecewiseLinear.repeat(
        1,
        breaks=np.array([first, first + draw(st.integers(1, 4))]),
        closed=(draw(st.booleans()), draw(st.booleans())),
        slopes=np.array(slopes),
        intercepts=np.array(draw(st.lists(small, min_size=3, max_size=3))),
    )


def softened(phi: PiecewiseLinear, t: np.ndarray) -> np.ndarray:
    knots, weights, signs, constant = relu_coefficients(phi, RAMP)
    units = np.maximum(signs[0] * (t[:, None] - knots[0]), 0)
    return units @ weights[0] + constant[0]


@settings(max_examples=200)
@given(functions())
def test_agrees_off_the_ramps_and_at_the_breaks(phi: PiecewiseLinear) -> None:
    c_1, c_2 = phi.breaks[0, 0].tolist()
    t = np.concatenate([np.linspace(c_1 - 5, c_2 + 5, 401), [c_1, c_2]])
    near = np.zeros_like(t, dtype=bool)
    for c, closed in zip((c_1, c_2), phi.closed[0, 0], strict=True):
        low, high = (c, c + RAMP) if closed else (c - RAMP, c)
        near |= (t > low) & (t < high)
    expected = phi.apply(0, t[:, None])[:, 0]
    assert np.abs(softened(phi, t) - expected)[~near].max() <= 1e-9


@given(functions())
def test_ramps_join_the_pieces(phi: PiecewiseLinear) -> None:
    """Continuous: small steps of t make small steps of phi~."""
    c_1, c_2 = phi.breaks[0, 0].tolist()
    t = np.linspace(c_1 - 1, c_2 + 1, 20_001)
    steep = np.abs(np.diff(softened(phi, t))).max() / (t[1] - t[0])
    a, b = phi.slopes[0, 0], phi.intercepts[0, 0]
    jumps = [abs((a[i] - a[i + 1]) * c + b[i] - b[i + 1]) for i, c in enumerate((c_1, c_2))]
    assert steep <= (max(jumps) + 1) / RAMP + 100


def test_the_formula_of_the_paper() -> None:
    """b_1 constant, a jump at c_1 and c_2: the coefficients printed in B.2."""
    b_1, a_2, b_2, a_3, b_3, c_1, c_2 = 1.0, 2.0, -3.0, 0.5, 4.0, 1.0, 3.0
    phi = PiecewiseLinear.repeat(
        1,
        breaks=np.array([c_1, c_2]),
        closed=(False, False),
        slopes=np.array([0, a_2, a_3]),
        intercepts=np.array([b_1, b_2, b_3]),
    )
    knots, weights, signs, constant = relu_coefficients(phi, RAMP)
    J_1 = (a_2 * c_1 + b_2 - b_1) / RAMP
    J_2 = (a_3 * c_2 + b_3 - a_2 * (c_2 - RAMP) - b_2) / RAMP
    assert constant.tolist() == [[b_1]]
    assert signs.tolist() == [[1, 1, 1, 1]]
    assert knots.tolist() == [[c_1 - RAMP, c_1, c_2 - RAMP, c_2]]
    assert np.allclose(weights, [[J_1, a_2 - J_1, J_2 - a_2, a_3 - J_2]])


@given(functions(), st.lists(small, min_size=2, max_size=2), small)
def test_the_whole_layer_is_softened(
    phi: PiecewiseLinear, w: list[float], b: float
) -> None:
    hard = FeedForwardStack(
        W_1=np.array([[w]]),
        b_1=np.array([[b]]),
        W_2=np.array([[[2.0], [-1.0]]]),
        b_2=np.array([[0.5, 0.0]]),
        phi=phi,
    )
    soft = four_relus(hard, RAMP)
    assert soft.phi is None
    assert soft.W_1.shape == (1, 4, 2)
    x = np.random.default_rng(0).integers(-8, 8, (50, 2)) / 4 + 1 / 8  # t is off ramps
    t = (x @ np.array(w) + b)[:, None] - phi.breaks[0, 0]
    off = (np.abs(t) > RAMP).all(axis=-1)
    gap = np.abs(feed_forward_layer(soft, 0, x) - feed_forward_layer(hard, 0, x))
    assert gap[off].max(initial=0) <= 1e-9


def test_sharpened_softmax_is_one_hot() -> None:
    shape: Any = (1, 1, 1, 1)
    ones = np.ones(shape)
    stack = sharpen(AttentionStack(ones, ones[..., 0], ones, ones, ones), 2048 * 16**2)
    assert float(stack.W_K[0, 0, 0, 0]) == 2048 * 256
    delta = Fraction(1, 16)
    gap = float(2048 * 16**2 * delta**2 / 2)
    scores = np.array([0.0, gap, -gap])
    assert np.array_equal(softmax(scores), hardmax(scores))
