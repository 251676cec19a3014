"""The forward pass against the formulas written out token by token."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer.model.activation import PiecewiseLinear
from everyformer.model.forward import (
    attention_layer,
    feed_forward_layer,
    hardmax,
    softmax,
)
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage
from everyformer.numerics.rationals import exact_array


def random_attention(rng: np.random.Generator, h: int, m: int, d: int) -> AttentionStack:
    shape = (2, h, m, d)
    return AttentionStack(
        W_Q=rng.normal(size=shape),
        b_Q=rng.normal(size=shape[:3]),
        W_K=rng.normal(size=shape),
        W_V=rng.normal(size=shape),
        W_O=rng.normal(size=(2, h, d, m)),
    )


def test_attention_is_equation_1_in_columns() -> None:
    rng = np.random.default_rng(0)
    stack = random_attention(rng, h=3, m=2, d=4)
    x = rng.normal(size=(5, 4))
    X = x.T  # the paper writes tokens as columns
    expected = X.copy()
    for i in range(3):
        W_Q, W_K, W_V, W_O = (
            getattr(stack, name)[1, i] for name in ("W_Q", "W_K", "W_V", "W_O")
        )
        scores = (W_K @ X).T @ (W_Q @ X - stack.b_Q[1, i][:, None])
        weights = np.exp(scores) / np.exp(scores).sum(axis=0)
        expected += W_O @ W_V @ X @ weights
    assert np.allclose(attention_layer(stack, 1, x, "softmax"), expected.T, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_attention_with_a_gain_is_equation_8(n: int) -> None:
    rng = np.random.default_rng(n)
    stack = random_attention(rng, h=2, m=3, d=4)
    b_V, gain = rng.normal(size=(2, 2, 3)), rng.normal(size=(2, 2, 2 * n - 1))
    x = rng.normal(size=(n, 4))
    expected = x.copy()
    for i in range(2):
        query = x @ stack.W_Q[1, i].T - stack.b_Q[1, i]
        scores = np.exp(query @ (x @ stack.W_K[1, i].T).T)
        value = x @ stack.W_V[1, i].T + b_V[1, i]
        for j in range(n):
            for k in range(n):
                share = scores[j, k] / scores[j].sum() * gain[1, i, (j - k) + (n - 1)]
                expected[j] += stack.W_O[1, i] @ value[k] * share
    urpe = replace(stack, b_V=b_V, gain=gain)
    assert urpe.relative
    assert not stack.relative
    assert np.allclose(attention_layer(urpe, 1, x, "softmax"), expected, atol=1e-12)
    ones = replace(stack, gain=np.ones_like(gain), b_V=np.zeros_like(b_V))
    plain = attention_layer(stack, 1, x, "softmax")
    assert np.array_equal(attention_layer(ones, 1, x, "softmax"), plain)


def test_a_gain_of_another_length_is_refused() -> None:
    stack = random_attention(np.random.default_rng(0), h=2, m=3, d=4)
    with pytest.raises(ValueError, match=r"gain has shape .*, expected \(2, 2, 5\)"):
        replace(stack, gain=np.ones((2, 2, 4)))
    with pytest.raises(ValueError, match=r"gain has shape .*, expected \(2, 2, 5\)"):
        replace(stack, gain=np.ones((2, 1, 5)))
    with pytest.raises(ValueError, match=r"b_V has shape .*, expected \(2, 2, 3\)"):
        replace(stack, b_V=np.ones((2, 2, 4)))
    urpe = replace(stack, gain=np.ones((2, 2, 5)))
    with pytest.raises(ValueError, match="5 entries, but 4 tokens have 7 offsets"):
        attention_layer(urpe, 0, np.zeros((4, 4)), "softmax")


def test_feed_forward_is_equation_2_in_columns() -> None:
    rng = np.random.default_rng(1)
    W_1, b_1 = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 4))
    W_2, b_2 = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3))
    stack = FeedForwardStack(W_1, b_1, W_2, b_2)
    x = rng.normal(size=(6, 5, 3))
    hidden = np.maximum(np.einsum("rd,bnd->bnr", W_1[1], x) + b_1[1], 0)
    expected = x + np.einsum("dr,bnr->bnd", W_2[1], hidden) + b_2[1]
    assert np.allclose(feed_forward_layer(stack, 1, x), expected, atol=1e-12)


@pytest.mark.parametrize("normaliser", ["softmax", "hardmax"])
def test_claim_1_a_block_is_permutation_equivariant(normaliser: str) -> None:
    rng = np.random.default_rng(2)
    stack = random_attention(rng, h=2, m=1, d=3)
    x, order = rng.normal(size=(7, 4, 3)), [2, 0, 3, 1]
    out = attention_layer(stack, 0, x, normaliser)  # type: ignore[arg-type]
    moved = attention_layer(stack, 0, x[:, order], normaliser)  # type: ignore[arg-type]
    assert np.allclose(moved, out[:, order], atol=1e-12)


@given(st.lists(st.lists(st.integers(-3, 3), min_size=3, max_size=3), min_size=1))
def test_hardmax_shares_ties_exactly(rows: list[list[int]]) -> None:
    exact = hardmax(exact_array(rows))
    for scores, weights in zip(rows, exact.tolist(), strict=True):
        winners = [s == max(scores) for s in scores]
        assert weights == [Fraction(w, sum(winners)) for w in winners]
    assert np.allclose(hardmax(np.array(rows, dtype=float)), exact.astype(float))


def test_softmax_tends_to_hardmax() -> None:
    scores = np.array([[0.0, 1.0, 1.0], [2.0, -1.0, 0.5]])
    assert np.abs(softmax(2000 * scores) - hardmax(scores)).max() == 0


fractions = st.fractions(min_value=-4, max_value=4, max_denominator=8)


@settings(max_examples=60)
@given(st.lists(fractions, min_size=6, max_size=6), st.booleans(), st.booleans())
def test_phi_piece_by_piece(t: list[Fraction], first: bool, second: bool) -> None:
    phi = PiecewiseLinear.repeat(
        1,
        breaks=exact_array([-1, 1]),
        closed=(first, second),
        slopes=exact_array([2, 0, -3]),
        intercepts=exact_array([1, 5, Fraction(1, 2)]),
    )
    points = exact_array([[-1], [1], *([v] for v in t)])
    values = phi.apply(0, points)[:, 0]
    for point, value in zip(points[:, 0], values, strict=True):
        if point < -1 or (point == -1 and first):
            assert value == 2 * point + 1
        elif point < 1 or (point == 1 and second):
            assert value == 5
        else:
            assert value == -3 * point + Fraction(1, 2)


def test_wrong_shapes_are_refused() -> None:
    rng = np.random.default_rng(3)
    good = random_attention(rng, 2, 1, 3)
    with pytest.raises(ValueError, match=r"W_O has shape \(2, 2, 1, 3\), expected"):
        AttentionStack(good.W_Q, good.b_Q, good.W_K, good.W_V, good.W_V)
    with pytest.raises(ValueError, match="neither attention nor feed-forward"):
        Stage("empty", "nowhere")
    wide = FeedForwardStack(
        np.zeros((3, 1, 3)), np.zeros((3, 1)), np.zeros((3, 3, 1)), np.zeros((3, 3))
    )
    with pytest.raises(ValueError, match="2 attention and 3 feed-forward"):
        Stage("uneven", "nowhere", good, wide)
    with pytest.raises(ValueError, match="b_1 has shape"):
        FeedForwardStack(wide.W_1, wide.b_2, wide.W_2, wide.b_2)
    with pytest.raises(ValueError, match="no constant piece"):
        PiecewiseLinear.repeat(
            1, breaks=[0, 1], closed=(False, False), slopes=[1, 1, 1], intercepts=[0, 0, 0]
        )
    with pytest.raises(ValueError, match="c_1 < c_2"):
        PiecewiseLinear.repeat(
            1, breaks=[1, 1], closed=(False, False), slopes=[0, 1, 1], intercepts=[0, 0, 0]
        )
