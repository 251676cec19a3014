"""The forward pass, once, for every kind of number that numpy can hold.

The same code runs on float64 arrays and on object arrays of ints and Fractions. What
differs between the kinds is only softmax, which has no exact value.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction

import numpy as np

from everyformer.model.architecture import Normaliser
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage, toeplitz
from everyformer.papers import YUN2020, implements
from everyformer.progress import Progress, no_progress

HIDDEN_NUMBERS = 1 << 24
"""Most numbers of a hidden layer that are held at once."""


def softmax(scores: np.ndarray) -> np.ndarray:
    """exp(s_j) / sum_k exp(s_k) over the last axis, with the maximum subtracted."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def hardmax(scores: np.ndarray) -> np.ndarray:
    """One on the largest entry of the last axis; entries that tie share equally.

    Example:
        >>> hardmax(np.array([[1.0, 3.0, 2.0], [5.0, 0.0, 5.0]]))
        array([[0. , 1. , 0. ],
               [0.5, 0. , 0.5]])
    """
    largest = np.asarray(scores == scores.max(axis=-1, keepdims=True), dtype=bool)
    winners = largest.sum(axis=-1, keepdims=True)
    if scores.dtype != object:
        return largest / winners
    # [..., 1]: a share is the int 1 where one entry wins, so that ints stay ints.
    shares = np.asarray(_share(winners), dtype=object)
    return np.where(largest, shares, 0)


def only_heard(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Scores that no normaliser chooses where the mask is False.

    Args:
        scores: Shape (*batch, n, n), of any kind of number.
        mask: Shape (n, n), True where token j (row) attends to token k.

    Example:
        >>> only_heard(np.array([[1.0, 3.0], [5.0, 0.0]]), np.array([[1, 0], [1, 1]], bool))
        array([[  1., -inf],
               [  5.,   0.]])
    """
    if scores.dtype.kind == "f":
        return np.where(mask, scores, -np.inf)
    return np.where(mask, scores, scores.min(axis=-1, keepdims=True) - 1)


_share = np.frompyfunc(lambda winners: 1 if winners == 1 else Fraction(1, winners), 1, 1)
NORMALISERS = {"softmax": softmax, "hardmax": hardmax}
"""Scores to weights, over the last axis."""


@implements(YUN2020, "Equation 1")
def attention_layer(
    stack: AttentionStack, layer: int, x: np.ndarray, normaliser: Normaliser
) -> np.ndarray:
    """One attention layer with its skip connection; x has shape (*batch, n, d).

    x + sum_i softmax[(x W_Q^T - b_Q)(x W_K^T)^T] x W_V^T W_O^T     (softmax over keys)

    and with (softmax[..] * C) (x W_V^T + b_V) where the stack has a gain or a b_V. With a
    mask softmax runs over the tokens that it leaves.
    """
    update = None
    for head in range(stack.W_Q.shape[1]):
        output = head_update(stack, layer, head, x, normaliser)
        update = output if update is None else update + output
    return x if update is None else x + update


def head_update(
    stack: AttentionStack, layer: int, head: int, x: np.ndarray, normaliser: Normaliser
) -> np.ndarray:
    """What one head adds."""
    query = x @ stack.W_Q[layer, head].T - stack.b_Q[layer, head]
    key = x @ stack.W_K[layer, head].T
    value = x @ stack.W_V[layer, head].T
    if stack.b_V is not None:
        value = value + stack.b_V[layer, head]
    scores = query @ np.swapaxes(key, -1, -2)  # [*batch, n, n]
    if stack.mask is not None:
        scores = only_heard(scores, stack.mask[layer])
    weights = NORMALISERS[normaliser](scores)
    if stack.gain is not None:
        weights = weights * toeplitz(stack.gain[layer, head], x.shape[-2])
    return (weights @ value) @ stack.W_O[layer, head].T


@implements(YUN2020, "Equation 2")
def feed_forward_layer(stack: FeedForwardStack, layer: int, x: np.ndarray) -> np.ndarray:
    """One token-wise feed-forward layer with its skip connection.

    The update W_2 phi(...) + b_2 is summed first and added to x last: on the plateaus of
    the constructed networks every one of those sums is exact in float64.
    """
    tokens = x.reshape(-1, x.shape[-1])  # one matrix product, not one for each sequence
    some = max(1, HIDDEN_NUMBERS // stack.W_1.shape[1])
    if len(tokens) > some:  # wide layers: a part of the tokens after the other
        parts = [tokens[k : k + some] for k in range(0, len(tokens), some)]
        after = [feed_forward_layer(stack, layer, part) for part in parts]
        return np.concatenate(after).reshape(x.shape)
    t = tokens @ stack.W_1[layer].T
    t += stack.b_1[layer]
    if stack.phi is None:
        np.maximum(t, 0, out=t)
    else:
        t = stack.phi.apply(layer, t)
    update = t @ stack.W_2[layer].T
    update += stack.b_2[layer]
    update += tokens
    return update.reshape(x.shape)


def run_blocks(stage: Stage, x: np.ndarray, normaliser: Normaliser) -> Iterator[np.ndarray]:
    """The state after each block of a stage."""
    for block in range(stage.blocks):
        x = run_block(stage, block, x, normaliser)
        yield x


def run_block(
    stage: Stage, block: int, x: np.ndarray, normaliser: Normaliser
) -> np.ndarray:
    """The state after one block."""
    if stage.attention is not None:
        x = attention_layer(stage.attention, block, x, normaliser)
    if stage.feed_forward is not None:
        x = feed_forward_layer(stage.feed_forward, block, x)
    return x


def run_stages(
    stages: Iterable[Stage],
    x: np.ndarray,
    normaliser: Normaliser,
    progress: Progress = no_progress,
) -> Iterator[tuple[Stage, np.ndarray]]:
    """The state after each stage, block by block, nothing short-cut."""
    for stage in stages:
        total = stage.blocks
        for done, state in enumerate(run_blocks(stage, x, normaliser), start=1):
            x = state
            if done % 512 == 0 or done == total:
                progress(stage.name, done, total)
        yield stage, x
