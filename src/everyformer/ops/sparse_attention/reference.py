"""Sparse attention as dense masked attention: the specification, in plain torch.

    o_k = sum_{j in A_k} softmax_{j in A_k}(scale q_k . k_j) v_j     (Yun et al. 2020b)

That is attention to all, with a bias of -inf for the tokens outside of A_k: the reference
of `pairwise_attention`, which the fast paths are tested against.
"""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from everyformer.ops.pairwise_attention.operands import Operands
from everyformer.ops.pairwise_attention.reference import attend
from everyformer.patterns import Part


def as_pairs(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n d"],
    part: Part,
    *,
    scale: float | None = None,
    key_padding: Bool[Tensor, "b n"] | None = None,
    dropout: float = 0.0,
    seed: Int[Tensor, "1"] | None = None,
) -> Operands:
    """What `pairwise_attention` is given: a bias of 0, and -inf where nobody attends."""
    shown = torch.tensor(part.mask(), device=q.device)
    bias = torch.zeros(shown.shape, device=q.device).masked_fill(~shown, -math.inf)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    pairs = bias[None, None]
    return Operands(q, k, v, pairs, None, key_padding, seed, False, scale, dropout)


def sparse_attention_reference(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n d"],
    part: Part,
    **options: Any,
) -> Float[Tensor, "b h n d"]:
    """Dense masked attention; a query without keys gives 0, and gradients 0.

    Example:
        >>> from everyformer.patterns import Window
        >>> q = k = torch.zeros(1, 1, 3, 1)
        >>> v = torch.tensor([[[[1.0], [3.0], [9.0]]]])
        >>> sparse_attention_reference(q, k, v, Window(3, 1, 0)).flatten()
        tensor([1., 2., 6.])
    """
    return attend(as_pairs(q, k, v, part, **options))
