"""Which code runs: the Triton kernels on a CUDA device, elsewhere `grouped`."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.ops.eager import without_autocast
from everyformer.ops.sparse_attention import grouped
from everyformer.ops.sparse_attention.operands import Incoming, Operands

MAX_HEAD_SIZE = 128
"""Of the Triton kernels; larger heads run as on a CPU."""


def _by_kernels(q: Tensor) -> bool:
    return q.is_cuda and q.dtype != torch.float64 and q.shape[-1] <= MAX_HEAD_SIZE


def _path(x: Operands) -> tuple[Any, Any]:
    """The module whose `forward` and `backward` run, and how they walk the pattern."""
    if not _by_kernels(x.q):
        return grouped, x.plan.steps
    from everyformer.ops.sparse_attention import launch  # Triton, on a GPU alone

    return launch, x.plan.walks(x.q.device)


def forward(x: Operands) -> tuple[Tensor, Tensor]:
    """The output, and the LSE: in base 2 from the kernels, natural otherwise."""
    code, walked = _path(x)
    with without_autocast(x.q):
        return code.forward(x, walked)


def gradients(x: Operands, incoming: Incoming) -> tuple[Tensor, Tensor, Tensor]:
    """Those of q, k and v."""
    code, walked = _path(x)
    with without_autocast(x.q):
        return code.backward(x, incoming, walked)


def joined_gradients(x: Operands, incoming: Incoming) -> Float[Tensor, "3 b h n d"]:
    """The same in one tensor, which is where the kernels write them."""
    if not _by_kernels(x.q):
        return torch.stack(gradients(x, incoming))
    code, walked = _path(x)
    with without_autocast(x.q):
        return code.joined_backward(x, incoming, walked)


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
