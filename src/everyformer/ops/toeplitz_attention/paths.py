"""Which code runs: the Triton kernels on a CUDA device, elsewhere the chunked path."""

from typing import Any

from torch import Tensor

from everyformer.ops.toeplitz_attention import chunked


def _by_kernels(q: Tensor) -> bool:
    return q.is_cuda


def _launch() -> Any:
    """The Triton kernels, imported where there is a GPU and only there."""
    from everyformer.ops.toeplitz_attention import launch

    return launch


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    key_padding: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the LSE, and the table that the kernels make of bias and gain."""
    if _by_kernels(q):
        return _launch().forward(q, k, v, bias, gain, causal, scale, key_padding)
    out, lse = chunked.forward(q, k, v, bias, gain, causal, scale, key_padding)
    return out, lse, q.new_empty(0)


def gradients(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    key_padding: Tensor | None,
    causal: bool,
    scale: float,
    needs_bias: bool,
    needs_gain: bool,
    table: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Those of q, k, v, bias and gain; empty where not needed. An empty table is made."""
    given = (
        grad_out, q, k, v, out, lse, bias, gain, causal, scale, key_padding,
        needs_bias, needs_gain,
    )  # fmt: skip
    if _by_kernels(q):
        known = table if table.numel() else None
        dq, dk, dv, dbias, dgain = _launch().backward(*given, known)
    else:
        dq, dk, dv, dbias, dgain = chunked.backward(*given)
    nothing = q.new_empty(0)
    return (
        dq,
        dk,
        dv,
        nothing if dbias is None else dbias,
        nothing.clone() if dgain is None else dgain,
    )
