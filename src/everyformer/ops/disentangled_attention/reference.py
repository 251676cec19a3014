"""Disentangled attention: the specification, in plain torch.

    O = softmax(scale (Q Kᵀ + C + P)) V        (He et al. 2021, DeBERTa, Equation 4)

C_ij = c2p[i, index(i - j)] is content to position, P_ij = p2c[j, index(i - j)] position to
content; the bucket of offset i - j is index[i - j + n_k - 1]. Everything has size n_q x n_k
here, and autograd gives the gradients. The fast paths are tested against this file.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from everyformer.ops.disentangled_attention.operands import Operands
from everyformer.ops.dropping import kept_pairs


def bucket_matrix(
    index: Int[Tensor, " offsets"], rows: range, n_k: int
) -> Int[Tensor, "rows {n_k}"]:
    """The bucket of query i, one of the rows, and key j: index[i - j + n_k - 1]."""
    queries = torch.arange(rows.start, rows.stop, device=index.device)
    keys = torch.arange(n_k, device=index.device)
    return index.long()[queries[:, None] - keys + (n_k - 1)]


def attend(x: Operands, first: int = 0) -> Float[Tensor, "b h n_q d"]:
    """softmax(scale (Q Kᵀ + C + P)) V, differentiable in q, k, v, c2p and p2c.

    A query without keys gives 0. The output has the dtype of q; the softmax of half
    precision is taken in float32.

    Args:
        x: The operands.
        first: Number of the first sequence of the batch, by which weights are dropped.

    Example:
        >>> q = k = torch.zeros(1, 1, 2, 1)
        >>> v = torch.tensor([[[[1.0], [3.0]]]])
        >>> past = torch.tensor([-1e9, 0.0]).expand(1, 1, 2, 2)
        >>> index = torch.tensor([0, 1, 1])
        >>> attend(Operands(q, k, v, past, None, index, None, None, 1.0, 0.0)).flatten()
        tensor([1., 2.])
    """
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
        dropped = kept_pairs(weights, x.seed, x.dropout, first_sequence=first)
        weights = weights * dropped
    return (weights @ x.v.to(dtype)).to(q.dtype)


def default_scale(d: int, c2p: Tensor | None, p2c: Tensor | None) -> float:
    """1 / sqrt(d terms), where q . k, c2p and p2c are terms."""
    return 1 / math.sqrt(d * (1 + (c2p is not None) + (p2c is not None)))
