"""Which code runs: the Triton kernels on a CUDA device, elsewhere `grouped`."""

import math
from typing import Any

import torch
from torch import Tensor

from everyformer.ops.sparse_attention import grouped
from everyformer.ops.sparse_attention.plans import PreparedPart

MAX_HEAD_SIZE = 128
"""Of the Triton kernels; larger heads run as on a CPU."""

Saved = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor, Tensor]
"""q, k, v, key_padding, seed, out and lse, for the backward pass."""


def _by_kernels(q: Tensor) -> bool:
    return q.is_cuda and q.dtype != torch.float64 and q.shape[-1] <= MAX_HEAD_SIZE


def _launch() -> Any:
    """The Triton kernels, imported where there is a GPU and only there."""
    from everyformer.ops.sparse_attention import launch

    return launch


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding: Tensor | None,
    seed: Tensor | None,
    plan: PreparedPart,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """The output, and the LSE: in base 2 from the kernels, natural otherwise."""
    if _by_kernels(q):
        walks = plan.walks(q.device)
        return _launch().forward(q, k, v, walks, scale, key_padding, seed, dropout)
    return grouped.forward(q, k, v, plan.groups, scale, key_padding, seed, dropout)


def gradients(
    grad_out: Tensor, saved: Saved, plan: PreparedPart, scale: float, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Those of q, k and v."""
    q, k, v, key_padding, seed, out, lse = saved
    given = (grad_out, q, k, v, out, lse)
    if _by_kernels(q):
        walks = plan.walks(q.device)
        return _launch().backward(*given, walks, scale, key_padding, seed, dropout)
    return grouped.backward(*given, plan.groups, scale, key_padding, seed, dropout)


def apart(found: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients that share no memory and are contiguous, as outputs of an operator are."""
    dq, dk, dv = (
        x.clone(memory_format=torch.contiguous_format)
        if x.storage_offset() or not x.is_contiguous()
        else x
        for x in found
    )
    return dq, dk, dv


def natural(q: Tensor, lse: Tensor) -> Tensor:
    """The LSE of `forward` to base e."""
    return lse * math.log(2) if _by_kernels(q) else lse
