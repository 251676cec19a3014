"""Attention with a bias and a gain for each pair: the specification, in plain torch.

    O = (softmax(scale * Q Kᵀ + B) ⊙ C ⊙ D) V    (Luo et al. 2022, Eq. 8, for any B and C)

D drops weights, and is 1 without dropout. Everything has size n_q x n_k here, and autograd
gives the gradients. The fast paths are tested against this file.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.ops.dropping import kept_pairs
from everyformer.ops.pairwise_attention.operands import Operands


def logits(x: Operands) -> Float[Tensor, "b h n_q n_k"]:
    """scale * Q Kᵀ + B in float32 at least, with -inf where a query does not see a key."""
    dtype = torch.promote_types(x.q.dtype, torch.float32)
    found = x.scale * (x.q.to(dtype) @ x.k.to(dtype).mT)
    if x.bias is not None:
        found = found + x.bias.to(dtype)
    hidden = [] if x.key_padding is None else [x.key_padding[:, None, None, :]]
    if x.causal:
        hidden.append(torch.ones_like(found[0, 0], dtype=torch.bool).triu(1))
    for pairs in hidden:
        found = found.masked_fill(pairs, -math.inf)
    return found


def attend(x: Operands, first: int = 0) -> Float[Tensor, "b h n_q d"]:
    """(softmax(scale * Q Kᵀ + B) ⊙ C ⊙ D) V, differentiable in q, k, v, bias and gain.

    A query without any key gives 0 and gradients 0, where `torch.softmax` would give NaN.

    Args:
        x: The operands.
        first: Number of the first sequence of the batch, by which weights are dropped.

    Example:
        >>> q = k = torch.zeros(1, 1, 2, 1)
        >>> v = torch.tensor([[[[1.0], [3.0]]]])
        >>> gain = torch.tensor([[[[1.0, 0.0], [0.0, -1.0]]]])
        >>> attend(Operands(q, k, v, gain=gain)).flatten()
        tensor([ 0.5000, -1.5000])
    """
    with_infinities = logits(x)
    # Whole rows of -inf keep their logits finite, so that no NaN reaches their gradients.
    empty = (with_infinities == -math.inf).all(-1, keepdim=True)
    finite = with_infinities.masked_fill(empty, 0.0)
    weights = torch.softmax(finite, -1).masked_fill(empty, 0.0)
    if x.gain is not None:
        weights = weights * x.gain.to(weights.dtype)
    if x.dropout > 0.0 and x.seed is not None:
        dropped = kept_pairs(weights, x.seed, x.dropout, first_sequence=first)
        weights = weights * dropped
    return (weights @ x.v.to(weights.dtype)).to(x.q.dtype)
