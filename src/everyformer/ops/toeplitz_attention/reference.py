"""Attention with a Toeplitz bias and a Toeplitz gain: the specification, in plain torch.

    O = (softmax(scale * Q Kᵀ + B) ⊙ C) V        (Luo et al. 2022, Eq. 8)

B_ij = bias[i - j + n_k - 1] and C_ij = gain[i - j + n_k - 1]: query minus key. Everything
has size n_q x n_k here, and autograd gives the gradients. The fast paths are tested against
this file.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from everyformer.errors import InputError


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
    k: Float[Tensor, "b h n_k d"],
    bias: Float[Tensor, "#h n_q+n_k-1"] | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    key_padding: Bool[Tensor, "b n_k"] | None = None,
) -> Float[Tensor, "b h n_q n_k"]:
    """scale * Q Kᵀ + B, with -inf where a query does not see a key.

    Half precision is raised to float32. `torch.logsumexp` of the result over the keys is
    the LSE that the fast paths return: -inf for a query without keys.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    n_q, n_k = q.shape[-2], k.shape[-2]
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    logits = scale * (q.to(dtype) @ k.to(dtype).mT)  # [b, h, n_q, n_k]
    if bias is not None:
        logits = logits + toeplitz(bias.to(dtype), n_q, n_k)
    if causal:
        past = torch.ones(n_q, n_k, dtype=torch.bool, device=q.device).tril()
        logits = logits.masked_fill(~past, -math.inf)
    if key_padding is not None:
        logits = logits.masked_fill(key_padding[:, None, None, :], -math.inf)
    return logits


def toeplitz_attention_reference(
    q: Float[Tensor, "b h n_q d"],
    k: Float[Tensor, "b h n_k d"],
    v: Float[Tensor, "b h n_k d"],
    bias: Float[Tensor, "#h n_q+n_k-1"] | None = None,
    gain: Float[Tensor, "#h n_q+n_k-1"] | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    key_padding: Bool[Tensor, "b n_k"] | None = None,
) -> Float[Tensor, "b h n_q d"]:
    """(softmax(scale * Q Kᵀ + B) ⊙ C) V, differentiable in q, k, v, bias and gain.

    A query without any key (all padded, or every bias -inf) gives 0 and gradients 0, where
    `torch.softmax` would give NaN.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        bias: Added to the logits by offset; offset i - j is at index i - j + n_k - 1. One
            row per head, or one row for all heads. None adds nothing.
        gain: Multiplied on the weights after the softmax, indexed as `bias`. Any sign.
        causal: Query i sees the keys j <= i only.
        scale: Factor on q·k; 1 / sqrt(d) if None.
        key_padding: True at the keys that no query sees.

    Returns:
        The outputs, in the dtype of q. The softmax of half precision is taken in float32.

    Example:
        >>> q = k = torch.zeros(1, 1, 2, 1)
        >>> v = torch.tensor([[[[1.0], [3.0]]]])
        >>> past_only = torch.tensor([[0.0, 0.0, 1.0]])
        >>> toeplitz_attention_reference(q, k, v, gain=past_only).flatten()
        tensor([0.0000, 0.5000])
    """
    logits = toeplitz_logits_reference(
        q, k, bias, causal=causal, scale=scale, key_padding=key_padding
    )
    # The shift does not change the quotient, so no gradient flows through it.
    largest = logits.detach().amax(-1, keepdim=True)
    unnormalised = torch.exp(logits - largest.masked_fill(largest == -math.inf, 0.0))
    total = unnormalised.sum(-1, keepdim=True)
    weights = unnormalised / torch.where(total == 0, torch.ones_like(total), total)
    if gain is not None:
        weights = weights * toeplitz(gain.to(weights.dtype), q.shape[-2], k.shape[-2])
    return (weights @ v.to(weights.dtype)).to(q.dtype)
