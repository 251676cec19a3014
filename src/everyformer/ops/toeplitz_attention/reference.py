"""Attention with a Toeplitz bias and a Toeplitz gain: the specification, in plain torch.

    O = (softmax(scale * Q Kᵀ + B + M) ⊙ C ⊙ D) V    (M = 0, D = 1: Luo et al. 2022, Eq. 8)

B_ij = bias[i - j + n_k - 1] and C_ij = gain[i - j + n_k - 1]: query minus key. M is -inf
for pairs that do not count, or any other mask; D drops weights. Everything has size
n_q x n_k here, and autograd gives the gradients. The fast paths are tested against this
file.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from everyformer.errors import InputError
from everyformer.ops.dropping import kept
from everyformer.ops.toeplitz_attention.operands import HIDES, Operands
from everyformer.ops.toeplitz_attention.packing import bounds


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


def toeplitz_logits_reference(
    q: Float[Tensor, "b h n_q d"],
    k: Float[Tensor, "b h_k n_k d"],
    bias: Float[Tensor, "#h n_q+n_k-1"] | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    key_padding: Bool[Tensor, "b n_k"] | None = None,
    offset: int = 0,
    attn_mask: Tensor | None = None,
    sequences: Int[Tensor, " s_plus_1"] | None = None,
) -> Float[Tensor, "b h n_q n_k"]:
    """scale * Q Kᵀ + B + M, with -inf where a query does not see a key.

    Half precision is raised to float32. `torch.logsumexp` of the result over the keys is
    the LSE that the fast paths return: -inf for a query without keys.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    x = Operands(
        q, k, k, bias, None, key_padding, attn_mask, sequences, None,
        causal, scale, offset,
    )  # fmt: skip
    return _logits(x)


def toeplitz_attention_reference(
    q: Float[Tensor, "b h n_q d"],
    k: Float[Tensor, "b h_k n_k d"],
    v: Float[Tensor, "b h_k n_k d"],
    bias: Float[Tensor, "#h n_q+n_k-1"] | None = None,
    gain: Float[Tensor, "#h n_q+n_k-1"] | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    key_padding: Bool[Tensor, "b n_k"] | None = None,
    offset: int = 0,
    attn_mask: Tensor | None = None,
    sequences: Int[Tensor, " s_plus_1"] | None = None,
    dropout: float = 0.0,
    seed: Int[Tensor, "1"] | None = None,
) -> Float[Tensor, "b h n_q d"]:
    """(softmax(scale * Q Kᵀ + B + M) ⊙ C ⊙ D) V, differentiable in q, k, v, bias and gain.

    A query without any key (all padded, or every bias -inf) gives 0 and gradients 0, where
    `torch.softmax` would give NaN.

    Args:
        q: Queries.
        k: Keys; query head i uses key head i // (h / h_k).
        v: Values.
        bias: Added to the logits by offset; offset i - j is at index i - j + n_k - 1. One
            row per head, or one row for all heads. None adds nothing.
        gain: Multiplied on the weights after the softmax, indexed as `bias`. Any sign.
        causal: Query i sees the keys j <= i + offset only.
        scale: Factor on q·k; 1 / sqrt(d) if None.
        key_padding: True at the keys that no query sees.
        offset: The place of the first query, if that of the first key is 0.
        attn_mask: True for pairs that count, or numbers added to the logits, of which
            those up to `HIDES` hide their pair; broadcast to (b, h, n_q, n_k).
        sequences: Where packed sequences begin, and where the last one ends; a query sees
            the keys of its own.
        dropout: The share of weights that are dropped, after the gain; the others grow.
        seed: Which ones, by `dropping.kept`.

    Returns:
        The outputs, in the dtype of q. The softmax of half precision is taken in float32.

    Example:
        >>> q = k = torch.zeros(1, 1, 2, 1)
        >>> v = torch.tensor([[[[1.0], [3.0]]]])
        >>> past_only = torch.tensor([[0.0, 0.0, 1.0]])
        >>> toeplitz_attention_reference(q, k, v, gain=past_only).flatten()
        tensor([0.0000, 0.5000])
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    x = Operands(
        q, k, v, bias, gain, key_padding, attn_mask, sequences, seed,
        causal, scale, offset, dropout,
    )  # fmt: skip
    return attend(x)


def attend(x: Operands, first: int = 0) -> Float[Tensor, "b h n_q d"]:
    """The reference on operands; `first` is the number of the first sequence of the batch.

    Weights are dropped by that number.
    """
    logits = _logits(x)
    # The shift does not change the quotient, so no gradient flows through it.
    largest = logits.detach().amax(-1, keepdim=True)
    unnormalised = torch.exp(logits - largest.masked_fill(largest == -math.inf, 0.0))
    total = unnormalised.sum(-1, keepdim=True)
    weights = unnormalised / torch.where(total == 0, torch.ones_like(total), total)
    if x.gain is not None:
        rows = toeplitz(x.gain.to(weights.dtype), x.q.shape[-2], x.k.shape[-2])
        weights = weights * rows
    if x.dropout > 0.0 and x.seed is not None:
        b, h, n_q, n_k = (torch.arange(size, device=x.q.device) for size in weights.shape)
        places = (b + first)[:, None, None, None], h[:, None, None], n_q[:, None], n_k
        weights = weights * kept(x.seed, *places, x.dropout, weights.dtype)
    values = x.v.to(weights.dtype).repeat_interleave(x.group, 1)
    return (weights @ values).to(x.q.dtype)


def _logits(x: Operands) -> Float[Tensor, "b h n_q n_k"]:
    dtype = torch.promote_types(x.q.dtype, torch.float32)
    n_q, n_k = x.q.shape[-2], x.k.shape[-2]
    keys = x.k.to(dtype).repeat_interleave(x.group, 1)
    logits = x.scale * (x.q.to(dtype) @ keys.mT)  # [b, h, n_q, n_k]
    if x.bias is not None:
        logits = logits + toeplitz(x.bias.to(dtype), n_q, n_k)
    if x.attn_mask is not None:
        mask = x.attn_mask.detach()
        if mask.dtype == torch.bool:
            logits = logits.masked_fill(~mask, -math.inf)
        else:
            logits = (logits + mask.to(dtype)).masked_fill(mask <= HIDES, -math.inf)
    if x.causal:
        seen = torch.ones(n_q, n_k, dtype=torch.bool, device=x.q.device).tril(x.offset)
        logits = logits.masked_fill(~seen, -math.inf)
    if x.key_padding is not None:
        logits = logits.masked_fill(x.key_padding[:, None, None, :], -math.inf)
    if x.sequences is not None:
        begin, end = bounds(x.sequences, n_k)
        tokens = torch.arange(n_k, device=x.q.device)
        own = (tokens >= begin[:, None]) & (tokens < end[:, None])
        logits = logits.masked_fill(~own, -math.inf)
    return logits
