"""Prefix tokens that are run once for all sequences.

Prefix tokens are the same for every sequence until attention lets them hear it. Often no
later layer reads what they heard: then it need not be computed, n queries remain of P + n,
and the keys and values of the prefix serve all sequences. That is the setting of prefix
tuning, and of cross-attention to a fixed memory.
"""

from collections.abc import Sequence

import numpy as np

from everyformer.model.architecture import Normaliser
from everyformer.model.forward import NORMALISERS, feed_forward_layer
from everyformer.model.stacks import AttentionStack, Stage
from everyformer.progress import Progress, no_progress

SCORES = 1 << 23
"""Most scores that are held at once."""


def is_deaf(stages: Sequence[Stage], width: int) -> bool:
    """Whether no layer reads off a prefix token what it heard, by the weights.

    Going backwards, a register is live if a later layer reads it off a prefix token. None
    is after the last layer, since only the sequence is read out. A feed-forward layer makes
    live what its hidden units read that write a live register; attention makes live what
    keys and values read. If attention writes a live register, prefix tokens must attend.

    Args:
        stages: The blocks.
        width: Registers of a token.
    """
    live = np.zeros(width, dtype=bool)
    for stage in reversed(stages):
        for block in reversed(range(stage.blocks)):
            if stage.feed_forward is not None:
                W_1, W_2 = stage.feed_forward.W_1[block], stage.feed_forward.W_2[block]
                writing = (W_2[live] != 0).any(axis=0)
                live |= (W_1[writing] != 0).any(axis=0)
            if stage.attention is not None:
                stack = stage.attention
                if stack.mask is not None or stack.gain is not None:
                    return False
                if (stack.W_O[block][:, live] != 0).any():
                    return False
                for read in (stack.W_K[block], stack.W_V[block]):
                    live |= (read != 0).any(axis=(0, 1))
    return True


def run_beside_prefix(
    stages: Sequence[Stage],
    prefix: np.ndarray,
    state: np.ndarray,
    normaliser: Normaliser,
    progress: Progress = no_progress,
) -> np.ndarray:
    """The registers of the sequences after all blocks, if the prefix `is_deaf`.

    Args:
        stages: The blocks.
        prefix: Shape (P, w).
        state: Shape (count, n, w).
        normaliser: Softmax or hardmax.
        progress: Called as progress(what, done, total).
    """
    count, n = state.shape[:2]
    some = max(1, SCORES // (n * (n + len(prefix))))
    done: list[np.ndarray] = []
    for start in range(0, count, some):
        progress("beside the prefix", start, count)
        done.append(_run(stages, prefix, state[start : start + some], normaliser))
    return np.concatenate(done) if done else state


def _run(
    stages: Sequence[Stage], prefix: np.ndarray, x: np.ndarray, normaliser: Normaliser
) -> np.ndarray:
    for stage in stages:
        for block in range(stage.blocks):
            if stage.attention is not None:
                x = _attend(stage.attention, block, prefix, x, normaliser)
            if stage.feed_forward is not None:
                x = feed_forward_layer(stage.feed_forward, block, x)
                prefix = feed_forward_layer(stage.feed_forward, block, prefix)
    return x


def _attend(
    stack: AttentionStack,
    layer: int,
    prefix: np.ndarray,
    x: np.ndarray,
    normaliser: Normaliser,
) -> np.ndarray:
    """`forward.attention_layer` for the tokens of the sequence alone."""
    P = len(prefix)
    update = np.zeros_like(x)
    for head in range(stack.W_Q.shape[1]):
        query = x @ stack.W_Q[layer, head].T - stack.b_Q[layer, head]
        keys = [tokens @ stack.W_K[layer, head].T for tokens in (prefix, x)]
        values = [tokens @ stack.W_V[layer, head].T for tokens in (prefix, x)]
        if stack.b_V is not None:
            values = [value + stack.b_V[layer, head] for value in values]
        scores = [query @ np.swapaxes(key, -1, -2) for key in keys]
        weights = NORMALISERS[normaliser](np.concatenate(scores, axis=-1))
        average = weights[..., :P] @ values[0] + weights[..., P:] @ values[1]
        update += average @ stack.W_O[layer, head].T
    return x + update
