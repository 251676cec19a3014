"""Attention with a bias and a gain for each pair: the specification, in plain torch.

    O = (softmax(scale * Q Kᵀ + B) ⊙ C ⊙ D) V    (Luo et al. 2022, Eq. 8, for any B and C)

D drops weights, and is 1 without dropout. Everything has size n_q x n_k here, and autograd
gives the gradients. The fast paths are tested against this file.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from everyformer.ops.pairwise_attention.dropping import kept_pairs
from everyformer.ops.pairwise_attention.operands import Operands


def pairwise_logits_reference(
    q: Float[Tensor, "b h n_q d"],
    k: Float[Tensor, "b h n_k d"],
    bias: Float[Tensor, "#b #h #n_q n_k"] | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    key_padding: Bool[Tensor, "b n_k"] | None = None,
) -> Float[Tensor, "b h n_q n_k"]:
    """scale * Q Kᵀ + B in float32 at least, with -inf where a query does not see a key."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    logits = scale * (q.to(dtype) @ k.to(dtype).mT)
    if bias is not None:
        logits = logits + bias.to(dtype)
    hidden = [] if key_padding is None else [key_padding[:, None, None, :]]
    if causal:
        hidden.append(torch.ones_like(logits[0, 0], dtype=torch.bool).triu(1))
    for pairs in hidden:
        logits = logits.masked_fill(pairs, -math.inf)
    return logits


def pairwise_attention_reference(
    q: Float[Tensor, "b h n_q d"],
    k: Float[Tensor, "b h n_k d"],
    v: Float[Tensor, "b h n_k d"],
    bias: Float[Tensor, "#b #h #n_q n_k"] | None = None,
    gain: Float[Tensor, "#b #h #n_q n_k"] | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    key_padding: Bool[Tensor, "b n_k"] | None = None,
    dropout: float = 0.0,
    seed: Int[Tensor, "1"] | None = None,
) -> Float[Tensor, "b h n_q d"]:
    """(softmax(scale * Q Kᵀ + B) ⊙ C) V, differentiable in q, k, v, bias and gain.

    The arguments are those of `pairwise_attention`. A query without any key gives 0 and
    gradients 0, where `torch.softmax` would give NaN.

    Example:
        >>> q = k = torch.zeros(1, 1, 2, 1)
        >>> v = torch.tensor([[[[1.0], [3.0]]]])
        >>> gain = torch.tensor([[[[1.0, 0.0], [0.0, -1.0]]]])
        >>> pairwise_attention_reference(q, k, v, gain=gain).flatten()
        tensor([ 0.5000, -1.5000])
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return attend(Operands(q, k, v, bias, gain, key_padding, seed, causal, scale, dropout))


def attend(x: Operands, first: int = 0) -> Float[Tensor, "b h n_q d"]:
    """The same of sequences of a batch from a number on: weights are dropped by it."""
    logits = pairwise_logits_reference(
        x.q, x.k, x.bias, causal=x.causal, scale=x.scale, key_padding=x.key_padding
    )
    # Whole rows of -inf keep their logits finite, so that no NaN reaches their gradients.
    empty = (logits == -math.inf).all(-1, keepdim=True)
    weights = torch.softmax(logits.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    if x.gain is not None:
        weights = weights * x.gain.to(weights.dtype)
    starts = (first, 0, 0, 0)
    ends = (start + size for start, size in zip(starts, x.sizes, strict=True))
    factor = kept_pairs(x, [*map(range, starts, ends)], weights.dtype)
    if factor is not None:
        weights = weights * factor
    return (weights @ x.v.to(weights.dtype)).to(x.q.dtype)
