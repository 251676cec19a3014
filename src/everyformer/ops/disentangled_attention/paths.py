"""Which code runs: the Triton kernels on a CUDA device, elsewhere the chunked path."""

from typing import Any

import torch
from torch import Tensor

from everyformer.ops.disentangled_attention import chunked
from everyformer.ops.disentangled_attention.operands import Incoming, Operands


def _by_kernels(q: Tensor) -> bool:
    return q.is_cuda


def _code(q: Tensor) -> Any:
    """The Triton kernels are imported where there is a GPU and only there."""
    if not _by_kernels(q):
        return chunked
    from everyformer.ops.disentangled_attention import launch

    return launch


def forward(x: Operands) -> tuple[Tensor, Tensor]:
    """The output and the LSE; autocast has had its say before."""
    with torch.autocast(x.q.device.type, enabled=False):
        return _code(x.q).forward(x)


def gradients(x: Operands, incoming: Incoming) -> tuple[Tensor, ...]:
    """Those of q, k, v, c2p and p2c; empty where not needed."""
    with torch.autocast(x.q.device.type, enabled=False):
        found = _code(x.q).backward(x, incoming)
    return tuple(x.q.new_empty(0) if y is None else y for y in found)
