"""The forward pass as a differentiable function of plain torch, over the same rectangles.

    o_k = sum_j exp(s_kj - m_k) v_j / sum_j exp(s_kj - m_k),    m_k = max_j s_kj

Autograd gives all derivatives, of any order and in both modes. Memory follows the number of
pairs, all of which are kept for the derivatives.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.ops.dropping import kept
from everyformer.ops.sparse_attention.grouped import STEP_NUMBERS
from everyformer.ops.sparse_attention.operands import Operands
from everyformer.ops.sparse_attention.rectangles import rectangles


def attend(x: Operands, first: int = 0) -> Float[Tensor, "b h n d"]:
    """The output of sequences of a batch from a number on: weights are dropped by it."""
    return forward(x, first)[0]


def forward(
    x: Operands, first: int = 0
) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n"]]:
    """The output, and the natural-log LSE, which has no derivative."""
    q, k, v, key_padding, seed, plan, scale, dropout = x
    dtype, n = torch.promote_types(q.dtype, torch.float32), q.shape[2]
    pad = torch.nn.functional.pad
    # Row n stands for nobody.
    q_, k_, v_ = (pad(x.to(dtype), (0, 0, 0, 1)) for x in (q, k, v))
    q_ = q_ * scale
    padded = None if key_padding is None else pad(key_padding, (0, 1), value=True)
    room = max(1, STEP_NUMBERS // (q.shape[0] * q.shape[1] * q.shape[3]))
    found = list(rectangles(plan.groups, n, room, q.device))
    logits: list[Tensor] = []
    for one in found:
        each = q_[:, :, one.queries] @ k_[:, :, one.keys].mT  # [b, h, g, r, c]
        if one.hidden is not None:
            each = each.masked_fill(one.hidden, -math.inf)
        if padded is not None:
            hidden = padded[:, one.keys][:, None, :, None, :]
            each = each.masked_fill(hidden, -math.inf)
        logits.append(each)
    empty = torch.zeros_like(q_[..., :1])
    # The shift does not change the quotient, so no derivative goes through it.
    largest = (empty - math.inf).detach()
    for one, each in zip(found, logits, strict=True):
        top = each.detach().amax(-1).flatten(2)[..., None]
        index = one.queries.flatten()[:, None].expand_as(top)
        largest = largest.scatter_reduce(2, index, top, "amax")
    largest = largest.masked_fill(largest == -math.inf, 0.0)
    total, mixed = empty, torch.zeros_like(v_)
    b, h = (torch.arange(size, device=q.device) for size in q.shape[:2])
    axes = (b + first)[:, None, None, None, None], h[:, None, None, None]
    for one, each in zip(found, logits, strict=True):
        weights = (each - largest[:, :, one.queries]).exp()
        rows = one.queries.flatten()
        total = total.index_add(2, rows, weights.sum(-1, keepdim=True).flatten(2, 3))
        if seed is not None and dropout > 0.0:
            places = (*axes, one.queries[:, :, None], one.keys[:, None, :])
            weights = weights * kept(seed, *places, dropout, dtype)
        terms = weights @ v_[:, :, one.keys]
        mixed = mixed.index_add(2, rows, terms.flatten(2, 3))
    out = (mixed / torch.where(total == 0, 1.0, total))[:, :, :n].to(q.dtype)
    lse = (largest + total.detach().log())[:, :, :n, 0]
    return out, lse.detach()
