"""Sparse attention as dense masked attention: the specification, in plain torch.

    o_k = sum_{j in A_k} softmax_{j in A_k}(scale q_k . k_j) v_j     (Yun et al. 2020b)

Everything has size n x n here, and autograd gives the gradients. The fast paths are tested
against this file.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from everyformer.ops.dropping import kept_pairs
from everyformer.patterns import Part


def sparse_logits_reference(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    part: Part,
    *,
    scale: float | None = None,
    key_padding: Bool[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b h n n"]:
    """scale q k^T, with -inf where a query does not attend to a key.

    Half precision is raised to float32. `torch.logsumexp` of the result over the keys is
    the LSE that the fast paths return: -inf for a query without keys.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    hidden = ~torch.tensor(part.mask(), device=q.device)
    logits = scale * (q.to(dtype) @ k.to(dtype).mT)
    logits = logits.masked_fill(hidden, -math.inf)
    if key_padding is not None:
        logits = logits.masked_fill(key_padding[:, None, None, :], -math.inf)
    return logits


def sparse_attention_reference(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n d"],
    part: Part,
    *,
    scale: float | None = None,
    key_padding: Bool[Tensor, "b n"] | None = None,
    dropout: float = 0.0,
    seed: Int[Tensor, "1"] | None = None,
) -> Float[Tensor, "b h n d"]:
    """Dense masked attention; a query without keys gives 0, and gradients 0.

    Example:
        >>> from everyformer.patterns import Window
        >>> q = k = torch.zeros(1, 1, 3, 1)
        >>> v = torch.tensor([[[[1.0], [3.0], [9.0]]]])
        >>> sparse_attention_reference(q, k, v, Window(3, 1, 0)).flatten()
        tensor([1., 2., 6.])
    """
    logits = sparse_logits_reference(q, k, part, scale=scale, key_padding=key_padding)
    # Rows without keys keep finite logits, so that no NaN reaches their gradients.
    empty = (logits == -math.inf).all(-1, keepdim=True)
    weights = torch.softmax(logits.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    if seed is not None and dropout > 0.0:
        weights = weights * kept_pairs(weights, seed, dropout)
    return (weights @ v.to(weights.dtype)).to(q.dtype)
