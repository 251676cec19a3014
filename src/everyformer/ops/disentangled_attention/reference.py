"""Disentangled attention: the specification, in plain torch.

    O = softmax(scale (Q Kᵀ + C + P)) V        (He et al. 2021, DeBERTa, Equation 4)

C_ij = c2p[i, index(i - j)] is content to position, P_ij = p2c[j, index(i - j)] position to
content; the bucket of offset i - j is index[i - j + n_k - 1]. Everything has size n_q x n_k
here, and autograd gives the gradients. The fast paths are tested against this file.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from everyformer.ops.disentangled_attention.operands import Operands
from everyformer.ops.dropping import kept


def bucket_matrix(
    index: Int[Tensor, " offsets"], rows: range, n_k: int
) -> Int[Tensor, "rows {n_k}"]:
    """The bucket of query i, one of the rows, and key j: index[i - j + n_k - 1]."""
    queries = torch.arange(rows.start, rows.stop, device=index.device)
    keys = torch.arange(n_k, device=index.device)
    return index.long()[queries[:, None] - keys + (n_k - 1)]


def disentangled_attention_reference(
    q: Float[Tensor, "b h n_q d"],
    k: Float[Tensor, "b h n_k d"],
    v: Float[Tensor, "b h n_k d"],
    c2p: Float[Tensor, "b h n_q buckets"] | None,
    p2c: Float[Tensor, "b h n_k buckets"] | None,
    index: Int[Tensor, " n_q+n_k-1"],
    *,
    scale: float | None = None,
    key_padding: Bool[Tensor, "b n_k"] | None = None,
    dropout: float = 0.0,
    seed: Int[Tensor, "1"] | None = None,
) -> Float[Tensor, "b h n_q d"]:
    """softmax(scale (Q Kᵀ + C + P)) V, differentiable in q, k, v, c2p and p2c.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        c2p: q_i . r_b for each query i and bucket b.
        p2c: k_j . s_b for each key j and bucket b.
        index: The bucket of each offset i - j, the most negative one first.
        scale: Of the sum; by default 1 / sqrt(d times the number of terms).
        key_padding: True at the keys that no query sees. A query without keys gives 0.
        dropout: The share of weights that are dropped; the others grow to make up for it.
        seed: Which ones, by `dropping.kept`.

    Returns:
        The outputs, in the dtype of q. The softmax of half precision is taken in float32.

    Example:
        >>> q = k = torch.zeros(1, 1, 2, 1)
        >>> v = torch.tensor([[[[1.0], [3.0]]]])
        >>> past = torch.tensor([-1e9, 0.0]).expand(1, 1, 2, 2)
        >>> index = torch.tensor([0, 1, 1])
        >>> disentangled_attention_reference(q, k, v, past, None, index).flatten()
        tensor([1., 2.])
    """
    factor = default_scale(q.shape[-1], c2p, p2c) if scale is None else scale
    return attend(Operands(q, k, v, c2p, p2c, index, key_padding, seed, factor, dropout))


def attend(x: Operands, first: int = 0) -> Float[Tensor, "b h n_q d"]:
    """The same of sequences of a batch from a number on: weights are dropped by it."""
    q, k = x.q, x.k
    dtype = torch.promote_types(q.dtype, torch.float32)
    n_q, n_k = q.shape[-2], k.shape[-2]
    logits = q.to(dtype) @ k.to(dtype).mT  # [b, h, n_q, n_k]
    buckets = bucket_matrix(x.bucket_of, range(n_q), n_k).expand(*logits.shape)
    if x.c2p is not None:
        logits = logits + x.c2p.to(dtype).gather(-1, buckets)
    if x.p2c is not None:
        logits = logits + x.p2c.to(dtype).gather(-1, buckets.mT).mT
    logits = x.scale * logits
    if x.key_padding is None:
        weights = torch.softmax(logits, -1)
    else:
        # Rows without keys keep finite logits, so that no NaN reaches their gradients.
        hidden = x.key_padding[:, None, None, :]
        empty = hidden.all(-1, keepdim=True)
        logits = logits.masked_fill(hidden & ~empty, -math.inf)
        weights = torch.softmax(logits, -1).masked_fill(empty, 0.0)
    if x.dropout > 0.0 and x.seed is not None:
        b, h, i, j = (torch.arange(size, device=q.device) for size in weights.shape)
        places = (b + first)[:, None, None, None], h[:, None, None], i[:, None], j
        weights = weights * kept(x.seed, *places, x.dropout, dtype)
    return (weights @ x.v.to(dtype)).to(q.dtype)


def default_scale(d: int, c2p: Tensor | None, p2c: Tensor | None) -> float:
    """1 / sqrt(d terms), where q . k, c2p and p2c are terms."""
    return 1 / math.sqrt(d * (1 + (c2p is not None) + (p2c is not None)))
