"""Attention with a Toeplitz bias and a Toeplitz gain: the specification, in plain torch.

    O = (softmax(scale * Q Kᵀ + B + M) ⊙ C ⊙ D) V    (M = 0, D = 1: Luo et al. 2022, Eq. 8)

B_ij = bias[i - j + n_k - 1] and C_ij = gain[i - j + n_k - 1]: query minus key. M is -inf
for pairs that do not count, or any other mask; D drops weights. Everything has size
n_q x n_k here, and autograd gives the gradients. The fast paths are tested against this
file.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.errors import InputError
from everyformer.ops.dropping import kept_pairs
from everyformer.ops.toeplitz_attention.operands import HIDES, Operands
from everyformer.ops.toeplitz_attention.packing import own_sequence


def toeplitz(
    vector: Float[Tensor, "h offsets"], n_q: int, n_k: int
) -> Float[Tensor, "h {n_q} {n_k}"]:
    """The matrix T_ij = vector[i - j + n_k - 1] of every head.

    Args:
        vector: One row of n_q + n_k - 1 values per head, the most negative offset first.
        n_q: Number of queries, the rows of the matrix.
        n_k: Number of keys, the columns of the matrix.

    Returns:
        The matrices, one per head.

    Raises:
        InputError: If the vector does not have n_q + n_k - 1 entries per head.

    Example:
        >>> toeplitz(torch.tensor([[-2.0, -1.0, 0.0, 1.0]]), n_q=2, n_k=3)
        tensor([[[ 0., -1., -2.],
                 [ 1.,  0., -1.]]])
    """
    offsets = n_q + n_k - 1
    if vector.shape[-1] != offsets:
        msg = (
            f"vector has {vector.shape[-1]} entries per head, but {n_q} queries and {n_k} "
            f"keys have {offsets} offsets. Give one entry for each offset from {1 - n_k} "
            f"to {n_q - 1}."
        )
        raise InputError(msg)
    queries = torch.arange(n_q, device=vector.device)
    keys = torch.arange(n_k, device=vector.device)
    return vector[:, queries[:, None] - keys + (n_k - 1)]


def attend(x: Operands, first: int = 0) -> Float[Tensor, "b h n_q d"]:
    """(softmax(scale * Q Kᵀ + B + M) ⊙ C ⊙ D) V, differentiable in q, k, v, bias and gain.

    A query without any key (all padded, or every bias -inf) gives 0 and gradients 0, where
    `torch.softmax` would give NaN. The output has the dtype of q; the softmax of half
    precision is taken in float32.

    Args:
        x: The operands.
        first: Number of the first sequence of the batch, by which weights are dropped.

    Example:
        >>> q = k = torch.zeros(1, 1, 2, 1)
        >>> v = torch.tensor([[[[1.0], [3.0]]]])
        >>> past_only = torch.tensor([[0.0, 0.0, 1.0]])
        >>> attend(Operands(q, k, v, gain=past_only)).flatten()
        tensor([0.0000, 0.5000])
    """
    unshifted = logits(x)
    # The shift does not change the quotient, so no gradient flows through it.
    largest = unshifted.detach().amax(-1, keepdim=True)
    unnormalised = torch.exp(unshifted - largest.masked_fill(largest == -math.inf, 0.0))
    total = unnormalised.sum(-1, keepdim=True)
    weights = unnormalised / torch.where(total == 0, torch.ones_like(total), total)
    if x.gain is not None:
        rows = toeplitz(x.gain.to(weights.dtype), x.q.shape[-2], x.k.shape[-2])
        weights = weights * rows
    if x.dropout > 0.0 and x.seed is not None:
        dropped = kept_pairs(weights, x.seed, x.dropout, first_sequence=first)
        weights = weights * dropped
    values = x.v.to(weights.dtype).repeat_interleave(x.group, 1)
    return (weights @ values).to(x.q.dtype)


def logits(x: Operands) -> Float[Tensor, "b h n_q n_k"]:
    """scale * Q Kᵀ + B + M in float32 at least, -inf where a query does not see a key."""
    dtype = torch.promote_types(x.q.dtype, torch.float32)
    n_q, n_k = x.q.shape[-2], x.k.shape[-2]
    keys = x.k.to(dtype).repeat_interleave(x.group, 1)
    found = x.scale * (x.q.to(dtype) @ keys.mT)  # [b, h, n_q, n_k]
    if x.bias is not None:
        found = found + toeplitz(x.bias.to(dtype), n_q, n_k)
    if x.attn_mask is not None:
        mask = x.attn_mask.detach()
        if mask.dtype == torch.bool:
            found = found.masked_fill(~mask, -math.inf)
        else:
            found = (found + mask.to(dtype)).masked_fill(mask <= HIDES, -math.inf)
    if x.causal:
        seen = torch.ones(n_q, n_k, dtype=torch.bool, device=x.q.device).tril(x.offset)
        found = found.masked_fill(~seen, -math.inf)
    if x.key_padding is not None:
        found = found.masked_fill(x.key_padding[:, None, None, :], -math.inf)
    if x.sequences is not None:
        found = found.masked_fill(~own_sequence(x.sequences, n_k), -math.inf)
    return found
