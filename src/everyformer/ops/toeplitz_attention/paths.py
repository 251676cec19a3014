"""Which code runs: the Triton kernels on a CUDA device, elsewhere the chunked path."""

from typing import Any

from torch import Tensor

from everyformer.ops.attention_rules import Gradients, without_one_key
from everyformer.ops.eager import without_autocast
from everyformer.ops.toeplitz_attention import chunked
from everyformer.ops.toeplitz_attention.operands import Incoming, Operands


def _by_kernels(q: Tensor) -> bool:
    return q.is_cuda


def _path(q: Tensor) -> Any:
    """The module whose `backward` runs; Triton is imported on a GPU alone."""
    if not _by_kernels(q):
        return chunked
    from everyformer.ops.toeplitz_attention import launch

    return launch


def forward(x: Operands) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the LSE, and the table that the kernels make of bias and gain."""
    with without_autocast(x.q):
        if _by_kernels(x.q):
            return _path(x.q).forward(x)
        out, lse = chunked.forward(x)
    return out, lse, x.q.new_empty(0)


def gradients(x: Operands, incoming: Incoming) -> Gradients:
    """Those of q, k, v, bias and gain; None where not needed. An empty table is made."""
    with without_autocast(x.q):
        dq, dk, dv, dbias, dgain = _path(x.q).backward(x, incoming)
    without_one_key(x.k, dq, dk, dbias)
    return dq, dk, dv, dbias, dgain
