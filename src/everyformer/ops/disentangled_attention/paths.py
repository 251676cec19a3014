"""Which code runs: the Triton kernels on a CUDA device, elsewhere the chunked path."""

from typing import Any

import torch
from torch import Tensor

from everyformer.ops.attention_rules import Gradients
from everyformer.ops.disentangled_attention import chunked
from everyformer.ops.disentangled_attention.operands import Incoming, Operands


def _by_kernels(q: Tensor) -> bool:
    return q.is_cuda


def _path(q: Tensor) -> Any:
    """The module whose `forward` and `backward` run; Triton is imported on a GPU alone."""
    if not _by_kernels(q):
        return chunked
    from everyformer.ops.disentangled_attention import launch

    return launch


def forward(x: Operands) -> tuple[Tensor, Tensor]:
    """The output and the LSE; autocast has had its say before."""
    with torch.autocast(x.q.device.type, enabled=False):
        return _path(x.q).forward(x)


def gradients(x: Operands, incoming: Incoming) -> Gradients:
    """Those of q, k, v, c2p and p2c; None where not needed."""
    with torch.autocast(x.q.device.type, enabled=False):
        return _path(x.q).backward(x, incoming)
