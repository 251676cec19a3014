"""Targets to try, each with a proved modulus of continuity on [0, 1].

All moduli are in the maximum norm: |f(X) - f(Y)| <= omega(r) in every entry whenever
|X - Y| <= r in every entry. Where a docstring says "least", no smaller constant is true.
"""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from everyformer.targets.target import Target


def centring(seq_len: int, d_model: int = 1) -> Target:
    """x_j minus the mean of all tokens. Equivariant.

    Lipschitz constant 2(n-1)/n, the least: an entry has weight (n-1)/n on itself and -1/n
    on each of the n-1 others.
    """
    return Target(
        lambda x: x - x.mean(-2, keepdims=True),
        seq_len,
        d_model,
        lipschitz=Fraction(2 * max(seq_len - 1, 0), max(seq_len, 1)),
        equivariant=True,
        name="centring",
    )


def soft_attention(seq_len: int, d_model: int = 1) -> Target:
    """sum_k softmax_k(<x_j, x_k> / d) x_k: what one attention layer computes. Equivariant.

    Lipschitz constant 5/4 + (d-1)/(2d); least for d = 1 and even n. Write p for the weights
    of token j and y for its output; on [0, 1] the sum of absolute derivatives of y_i is

        sum_k p_k (1 + x_ji (x_ki - y_i) / d)      = 1       keys, same coordinate, all >= 0
        sum_{l != i} x_jl E_p|x_i - y_i| / d       <= (d-1)/(2d)     keys, other coordinates
        sum_l |Cov_p(x_l, x_i)| / d                <= 1/4            the query
    """

    def attend(x: np.ndarray) -> np.ndarray:
        scores = x @ np.swapaxes(x, -1, -2) / d_model
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True)) @ x

    return Target(
        attend,
        seq_len,
        d_model,
        lipschitz=Fraction(5, 4) + Fraction(d_model - 1, 2 * max(d_model, 1)),
        equivariant=True,
        name="soft_attention",
    )


def distance_to_maximum(seq_len: int, d_model: int = 1) -> Target:
    """max_k x_k - x_j, coordinate by coordinate. Equivariant.

    Lipschitz constant 2 for n >= 2, the least: the maximum rises by r while x_j falls by r.
    """
    return Target(
        lambda x: x.max(-2, keepdims=True) - x,
        seq_len,
        d_model,
        lipschitz=2.0 if seq_len > 1 else 0.0,
        equivariant=True,
        name="distance_to_maximum",
    )


def smooth_rank(seq_len: int, d_model: int = 1, sharpness: float = 8.0) -> Target:
    """The share of other tokens below x_j, mean of sigmoid(s (x_j - x_k)). Equivariant.

    Modulus tanh(s r / 2), the least: x_j - x_k moves by 2r at most, and
    sigmoid(s(a + 2r)) - sigmoid(s a) is largest at a = -r, for all k at once.
    """

    def rank(x: np.ndarray) -> np.ndarray:
        gaps = x[..., :, None, :] - x[..., None, :, :]  # [*batch, j, k, d]
        below = 0.5 * (1 + np.tanh(0.5 * sharpness * gaps))
        return (below.sum(-2) - 0.5) / max(seq_len - 1, 1)

    return Target(
        rank,
        seq_len,
        d_model,
        modulus=lambda r: math.tanh(sharpness * r / 2) * (1 + 1e-12),
        equivariant=True,
        name="smooth_rank",
    )


def smooth_bump(seq_len: int, d_model: int = 1) -> Target:
    """The product of sin^2(pi x) over all entries, in every entry. Equivariant.

    It vanishes on the boundary of the box, so it is continuous with compact support, as
    Theorem 2 asks. With N = nd entries the Lipschitz constant is

        2 pi N ((2N-1)/(2N))^(N - 1/2) / sqrt(2N),

    the least: sum_i |d_i f| = 2 pi f sum_i |cot(pi x_i)| is stationary only where all x_i
    agree, with cot^2 = 1/(2N-1), and its maximum grows with N.
    """
    N = max(seq_len * d_model, 1)
    slope = 2 * math.pi * N * ((2 * N - 1) / (2 * N)) ** (N - 0.5) / math.sqrt(2 * N)

    def bump(x: np.ndarray) -> np.ndarray:
        height = np.prod(np.sin(np.pi * x) ** 2, axis=(-2, -1), keepdims=True)
        return np.broadcast_to(height, x.shape)

    return Target(
        bump,
        seq_len,
        d_model,
        lipschitz=slope * (1 + 1e-12),  # more than the rounding of the formula
        equivariant=True,
        name="smooth_bump",
    )


def sort(seq_len: int, d_model: int = 1) -> Target:
    """Tokens in increasing order, coordinate by coordinate. Not equivariant.

    Lipschitz constant 1, the least: order statistics move no more than the entries.
    """
    return _rearrangement(lambda x: np.sort(x, axis=-2), seq_len, d_model, "sort")


def reverse(seq_len: int, d_model: int = 1) -> Target:
    """The sequence backwards. Not equivariant. Lipschitz constant 1, the least."""
    return _rearrangement(lambda x: x[..., ::-1, :], seq_len, d_model, "reverse")


def first_token(seq_len: int, d_model: int = 1) -> Target:
    """The first token, everywhere. Not equivariant. Lipschitz constant 1, the least."""
    return _rearrangement(
        lambda x: np.broadcast_to(x[..., :1, :], x.shape),
        seq_len,
        d_model,
        "first_token",
    )


def prefix_mean(seq_len: int, d_model: int = 1) -> Target:
    """The mean of tokens 1..j at position j. Not equivariant. Lipschitz constant 1."""

    def mean(x: np.ndarray) -> np.ndarray:
        return np.cumsum(x, axis=-2) / np.arange(1, seq_len + 1)[:, None]

    return _rearrangement(mean, seq_len, d_model, "prefix_mean")


def shift(seq_len: int, d_model: int = 1) -> Target:
    """Each token one place on, the last one first. Not equivariant. Lipschitz 1."""
    return _rearrangement(lambda x: np.roll(x, 1, axis=-2), seq_len, d_model, "shift")


def _rearrangement(
    function: Callable[[np.ndarray], np.ndarray], seq_len: int, d_model: int, name: str
) -> Target:
    """A map that moves or averages entries: Lipschitz constant 1."""
    return Target(function, seq_len, d_model, lipschitz=1.0, name=name)


GALLERY: dict[str, Callable[[int, int], Target]] = {
    "centring": centring,
    "soft_attention": soft_attention,
    "distance_to_maximum": distance_to_maximum,
    "smooth_rank": smooth_rank,
    "smooth_bump": smooth_bump,
    "sort": sort,
    "reverse": reverse,
    "first_token": first_token,
    "prefix_mean": prefix_mean,
    "shift": shift,
}
"""All targets by name; each is called with (seq_len, d_model)."""
