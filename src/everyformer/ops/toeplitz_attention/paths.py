"""Which code runs: the Triton kernels on a CUDA device, elsewhere the chunked path."""

from typing import Any

from torch import Tensor

from everyformer.ops.toeplitz_attention import chunked
from everyformer.ops.toeplitz_attention.operands import Incoming, Operands


def _by_kernels(q: Tensor) -> bool:
    return q.is_cuda


def _launch() -> Any:
    """The Triton kernels, imported where there is a GPU and only there."""
    from everyformer.ops.toeplitz_attention import launch

    return launch


def forward(x: Operands) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the LSE, and the table that the kernels make of bias and gain."""
    if _by_kernels(x.q):
        return _launch().forward(x)
    out, lse = chunked.forward(x)
    return out, lse, x.q.new_empty(0)


def gradients(
    x: Operands, incoming: Incoming
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Those of q, k, v, bias and gain; empty where not needed. An empty table is made."""
    by = _launch() if _by_kernels(x.q) else chunked
    dq, dk, dv, dbias, dgain = by.backward(x, incoming)
    if x.k.shape[2] == 1:  # one key has weight 1, whatever its logit: dS = 0, unrounded
        for gradient in (dq, dk, dbias):
            if gradient is not None:
                gradient.zero_()
    nothing = x.q.new_empty(0)
    return (
        dq,
        dk,
        dv,
        nothing if dbias is None else dbias,
        nothing.clone() if dgain is None else dgain,
    )
