"""The page of an attention layer: B, C, the weights, and what equal tokens become."""

from typing import Any

import numpy as np
import torch

from everyformer.checks.report import Report
from everyformer.checks.subject import Subject
from everyformer.errors import InputError
from everyformer.explore.inline import page_of
from everyformer.explore.judgements import judgement_data
from everyformer.layers.attention import RelativeAttention
from everyformer.layers.gains import ToeplitzGain
from everyformer.page import Page

DRAWS = 3
"""Draws of the weights that the page shows."""

MAX_HEADS = 4
MAX_TOKENS = 64


def attention_page(subject: Subject, report: Report) -> Page:
    """The page of a layer that was judged.

    Raises:
        InputError: If the sequence is too long to be drawn.
    """
    if subject.seq_len > MAX_TOKENS:
        msg = f"n = {subject.seq_len} is too long for matrices that can be read. Use -n"
        raise InputError(f"{msg} {MAX_TOKENS} or less.")
    rng = np.random.default_rng(0)
    X = np.tile(rng.standard_normal(subject.d_model), (subject.seq_len, 1))
    data = {
        "n": subject.seq_len,
        "d": subject.d_model,
        "verdict": str(report.verdict),
        "draws": [_draw(subject, seed, X) for seed in range(DRAWS)],
        **judgement_data((report.lp, report.sup), report.findings),
    }
    return page_of("attention", subject.name, data)


def _draw(subject: Subject, seed: int, X: np.ndarray) -> dict[str, Any]:
    """One draw of the weights: matrices of each head, and the outputs on equal tokens."""
    trial = subject.redrawn(seed)
    layers = [m for m in trial.module.modules() if isinstance(m, RelativeAttention)]
    B, C = bias_and_gain(layers[0], len(X)) if layers else (None, None)
    A = _weights(layers[0], B, C, len(X)) if layers else None
    return {
        "seed": seed,
        "B": _matrices(B),
        "C": _matrices(C),
        "A": _matrices(A),
        "equal": np.nan_to_num(trial.output(X)[:, 0]).tolist(),
    }


def _weights(
    layer: RelativeAttention, B: np.ndarray | None, C: np.ndarray | None, n: int
) -> np.ndarray | None:
    """A = softmax(B) * C on equal tokens, whose products q k do not change along a row.

    None where B depends on the tokens, or is not known as a matrix.
    """
    unknown = layer.encoding is not None and B is None
    if unknown or layer.causal or not _is_fixed(layer, n):
        return None
    scores = np.zeros((layer.num_heads, n, n)) if B is None else B
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights if C is None else weights * C


def _is_fixed(layer: RelativeAttention, n: int) -> bool:
    """Whether B is the same for two different queries."""
    if layer.encoding is None:
        return True
    shape = (1, layer.num_heads, n, layer.head_dim)
    with torch.no_grad():
        found = [
            layer.encoding.offset_bias(torch.full(shape, v, dtype=torch.float64))
            for v in (0.0, 1.0)
        ]
    first, second = found
    return first is not None and second is not None and bool((first == second).all())


def _matrices(found: Any) -> list[Any] | None:
    """Up to four matrices as lists; null on the page if the layer has no such matrix."""
    if found is None or len(found) == 0:
        return None
    return [np.nan_to_num(np.asarray(one)).tolist() for one in found[:MAX_HEADS]]


def bias_and_gain(
    layer: RelativeAttention, n: int
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """B and C of each head, (heads, n, n), where the layer has them."""
    weight = layer.in_proj_weight
    q = torch.zeros(1, layer.num_heads, n, layer.head_dim, dtype=weight.dtype)
    B = C = None
    with torch.no_grad():
        vector = None if layer.encoding is None else layer.encoding.offset_bias(q)
        if vector is not None:
            i = np.arange(n)
            B = vector.numpy()[:, i[:, None] - i + n - 1]
        if isinstance(layer.gain, ToeplitzGain):
            C = layer.gain.matrix(n)[0].numpy()
    return B, C
