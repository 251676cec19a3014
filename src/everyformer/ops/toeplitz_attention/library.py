"""The operator as a custom op, for `torch.compile`, export and fake tensors."""

from typing import Any

import torch
from torch import Tensor

from everyformer.ops.toeplitz_attention import derivatives, paths
from everyformer.ops.toeplitz_attention.operands import (
    Incoming,
    Operands,
    split,
)

PAD = 256
"""Zeros around the vectors; as in `kernels`, which cannot be imported without Triton."""


@torch.library.custom_op("everyformer::toeplitz_attention_forward", mutates_args=())
def forward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    key_padding: Tensor | None,
    attn_mask: Tensor | None,
    sequences: Tensor | None,
    seed: Tensor | None,
    causal: bool,
    scale: float,
    offset: int,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, LSE and table."""
    x = Operands(
        q, k, v, bias, gain, key_padding, attn_mask, sequences, seed,
        causal, scale, offset, dropout,
    )  # fmt: skip
    return paths.forward(x)


@forward_op.register_fake
def _forward_fake(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    x = Operands(*given)
    q = x.q
    statistics = torch.float64 if q.dtype == torch.float64 else torch.float32
    out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=statistics)
    vectors = [y for y in (x.bias, x.gain) if y is not None]
    if not q.is_cuda or not vectors:
        return out, lse, q.new_empty(0)
    heads, length = max(y.shape[0] for y in vectors), vectors[0].shape[1]
    return out, lse, q.new_empty(heads, length + 2 * PAD, 2, dtype=torch.float32)


@torch.library.custom_op("everyformer::toeplitz_attention_backward", mutates_args=())
def gradients_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    key_padding: Tensor | None,
    attn_mask: Tensor | None,
    sequences: Tensor | None,
    seed: Tensor | None,
    causal: bool,
    scale: float,
    offset: int,
    dropout: float,
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    table: Tensor,
    needs_bias: bool,
    needs_gain: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v, bias and gain; empty where not needed."""
    x = Operands(
        q, k, v, bias, gain, key_padding, attn_mask, sequences, seed,
        causal, scale, offset, dropout,
    )  # fmt: skip
    incoming = Incoming(grad_out, out, lse, table, needs_bias, needs_gain)
    return paths.gradients(x, incoming)


@gradients_op.register_fake
def _gradients_fake(*given: Any) -> tuple[Tensor, ...]:
    x, incoming = split(given)
    needed = (True, True, True, incoming.needs_bias, incoming.needs_gain)
    return tuple(
        y.new_empty(y.shape) if isinstance(y, Tensor) and wanted else x.q.new_empty(0)
        for y, wanted in zip(x[:5], needed, strict=True)
    )


def _backward(ctx: Any, grad_out: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    return derivatives.pull_back(ctx, grad_out, gradients_op)


forward_op.register_autograd(_backward, setup_context=derivatives.keep)
gradients_op.register_autograd(
    derivatives.pull_back_gradients, setup_context=derivatives.keep_gradients
)
