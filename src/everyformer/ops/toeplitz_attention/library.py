"""The operator as a custom op, for `torch.compile`, export and fake tensors."""

from typing import Any

import torch
from torch import Tensor

from everyformer.ops.toeplitz_attention import derivatives, paths

PAD = 256
"""Zeros around the vectors; as in `kernels`, which cannot be imported without Triton."""


@torch.library.custom_op("everyformer::toeplitz_attention", mutates_args=())
def forward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    key_padding: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, LSE and table."""
    return paths.forward(q, k, v, bias, gain, key_padding, causal, scale)


@forward_op.register_fake
def _forward_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    key_padding: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    statistics = torch.float64 if q.dtype == torch.float64 else torch.float32
    out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=statistics)
    if not q.is_cuda:
        return out, lse, q.new_empty(0)
    given = [x for x in (bias, gain) if x is not None]
    heads = max((x.shape[0] for x in given), default=1)
    length = given[0].shape[1] if given else 0
    return out, lse, q.new_empty(heads, length + 2 * PAD, 2, dtype=torch.float32)


@torch.library.custom_op("everyformer::toeplitz_attention_backward", mutates_args=())
def gradients_op(
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
    """The gradients of q, k, v, bias and gain; empty where not needed."""
    return paths.gradients(
        grad_out, q, k, v, out, lse, bias, gain, key_padding, causal, scale,
        needs_bias, needs_gain, table,
    )  # fmt: skip


@gradients_op.register_fake
def _gradients_fake(
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
    return (
        q.new_empty(q.shape),
        k.new_empty(k.shape),
        v.new_empty(v.shape),
        bias.new_empty(bias.shape) if needs_bias and bias is not None else q.new_empty(0),
        gain.new_empty(gain.shape) if needs_gain and gain is not None else q.new_empty(0),
    )


def _backward(ctx: Any, grad_out: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    return derivatives.pull_back(ctx, grad_out, gradients_op)


forward_op.register_autograd(_backward, setup_context=derivatives.keep)
gradients_op.register_autograd(
    derivatives.pull_back_gradients, setup_context=derivatives.keep_gradients
)
