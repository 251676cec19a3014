"""From logits to outputs, in plain torch: softmax, gain, dropout, values, in this order.

    a_ij = dropout(c_ij softmax_j(logits_ij)),        o_i = sum_j a_ij v_j

The softmax of half precision is taken in float32 and cast back before the gain.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from everyformer.ops.toeplitz_attention.checking import MAX_HEAD_SIZE


def operator_takes(q: Float[Tensor, "b h n d"], largest: int = MAX_HEAD_SIZE) -> bool:
    """Whether an operator runs on this device, for this dtype and head size.

    Args:
        q: Queries.
        largest: Head size on a GPU; that of `toeplitz_attention` by default.
    """
    limited = q.shape[-1] > largest or q.dtype == torch.float64
    return q.numel() > 0 and not (q.is_cuda and limited)


def for_all_heads(
    x: Float[Tensor, "b h_k n d"], heads: int
) -> Float[Tensor, "b {heads} n d"]:
    """Keys or values of groups of heads, once for every head: head i has i // (h / h_k)."""
    groups = x.shape[1]
    if groups == heads:
        return x
    shape = (-1, -1, heads // groups, -1, -1)
    return x[:, :, None].expand(shape).flatten(1, 2)


def scores(
    q: Float[Tensor, "b h n_q d"], k: Float[Tensor, "b h n_k d"], scale: float
) -> Float[Tensor, "b h n_q n_k"]:
    """scale q k^T, in float32 at least."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    return (q.to(dtype) * scale) @ k.to(dtype).mT


def hidden_pairs(
    n_q: int,
    n_k: int,
    *,
    causal: bool,
    key_padding: Bool[Tensor, "b n_k"] | None,
    device: torch.device,
    offset: int | None = None,
) -> Bool[Tensor, "b_or_1 1 {n_q} {n_k}"] | None:
    """True where query i, at place i + offset, does not see a key.

    By default offset = n_k - n_q: the queries are the last of the tokens.
    """
    hidden = None
    if causal:
        ones = torch.ones(1, 1, n_q, n_k, dtype=torch.bool, device=device)
        hidden = ones.triu(1 + (n_k - n_q if offset is None else offset))
    if key_padding is not None:
        padded = key_padding[:, None, None, :].expand(-1, 1, n_q, n_k)
        hidden = padded if hidden is None else hidden | padded
    return hidden


def attention_weights(
    logits: Float[Tensor, "b h n_q n_k"],
    hidden: Bool[Tensor, "..."] | None,
    gain: Float[Tensor, "..."] | None,
    *,
    dtype: torch.dtype,
    dropout: float = 0.0,
) -> Float[Tensor, "b h n_q n_k"]:
    """dropout(softmax(logits) * gain); a query that sees no key has weights 0.

    Args:
        logits: Scores and bias.
        hidden: True where a query does not see a key; broadcast over heads and batch.
        gain: Multiplied on the weights; broadcast. None multiplies nothing.
        dtype: Of the weights, cast to before the gain.
        dropout: Probability of setting a weight to 0; the others grow to make up for it.
    """
    if hidden is None:
        weights = torch.softmax(logits, -1).to(dtype)
    else:
        # Empty rows keep finite logits, so that no NaN reaches their gradients.
        empty = hidden.all(-1, keepdim=True)
        weights = torch.softmax(logits.masked_fill(hidden & ~empty, -math.inf), -1)
        weights = weights.to(dtype).masked_fill(empty, 0.0)
    if gain is not None:
        weights = weights * gain.to(dtype)
    if dropout > 0.0:
        weights = torch.nn.functional.dropout(weights, dropout)
    return weights
