"""Which code runs: the Triton kernels on a CUDA device, elsewhere the chunked path."""

from typing import Any

import torch
from torch import Tensor

from everyformer.ops.attention_rules import without_one_key
from everyformer.ops.eager import without_autocast
from everyformer.ops.pairwise_attention import chunked
from everyformer.ops.pairwise_attention.operands import Gradients, Incoming, Operands

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
    with without_autocast(x.q):
        return _path(x.q).forward(x)


def gradients(x: Operands, incoming: Incoming) -> Gradients:
    """Those of q, k, v, bias and gain; None where not needed."""
    with without_autocast(x.q):
        dq, dk, dv, dbias, dgain = _path(x.q).backward(x, incoming)
    without_one_key(x.k, dq, dk, dbias)
    return dq, dk, dv, dbias, dgain
