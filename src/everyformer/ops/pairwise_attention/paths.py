"""Which code runs: the Triton kernels on a CUDA device, elsewhere the chunked path."""

from typing import Any

import torch
from torch import Tensor

from everyformer.ops.pairwise_attention import chunked
from everyformer.ops.pairwise_attention.operands import Incoming, Operands

MAX_HEAD_SIZE = 256
"""Of the Triton kernels; larger heads run in chunks."""


def _by_kernels(q: Tensor) -> bool:
    return q.is_cuda and q.dtype != torch.float64 and q.shape[-1] <= MAX_HEAD_SIZE


def _path(q: Tensor) -> Any:
    """The module whose `forward` and `backward` run; Triton is imported on a GPU alone."""
    if not _by_kernels(q):
        return chunked
    from everyformer.ops.pairwise_attention import launch

    return launch


def forward(x: Operands) -> tuple[Tensor, Tensor]:
    """The output and the LSE."""
    return _path(x.q).forward(x)


def gradients(
    x: Operands, incoming: Incoming
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Those of q, k, v, bias and gain; empty where not needed."""
    dq, dk, dv, dbias, dgain = _path(x.q).backward(x, incoming)
    if x.k.shape[2] == 1:  # one key has weight 1, whatever its logit: dS = 0, unrounded
        for gradient in (dq, dk, dbias):
            if gradient is not None:
                gradient.zero_()
    dbias, dgain = (x.q.new_empty(0) if y is None else y for y in (dbias, dgain))
    return dq, dk, dv, dbias, dgain
