"""Which code runs: the Triton kernels on a CUDA device, elsewhere the chunked path."""

from typing import Any

from torch import Tensor

from everyformer.ops.attention_rules import Gradients
from everyformer.ops.disentangled_attention import chunked
from everyformer.ops.disentangled_attention.operands import Incoming, Operands
from everyformer.ops.eager import without_autocast


def _by_kernels(q: Tensor) -> bool:
    return q.is_cuda


def _path(q: Tensor) -> Any:
    """The module whose `forward` and `backward` run; Triton is imported on a GPU alone."""
    if not _by_kernels(q):
        return chunked
    from everyformer.ops.disentangled_attention import launch

    return launch


def forward(x: Operands) -> tuple[Tensor, Tensor]:
    """The output and the LSE."""
    with without_autocast(x.q):
        return _path(x.q).forward(x)


def gradients(x: Operands, incoming: Incoming) -> Gradients:
    """Those of q, k, v, c2p and p2c; None where not needed."""
    with without_autocast(x.q):
        return _path(x.q).backward(x, incoming)
