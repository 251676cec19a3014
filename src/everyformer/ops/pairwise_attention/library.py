"""The operator as a custom op, for `torch.compile`, export and fake tensors."""

from typing import Any

import torch
from torch import Tensor

from everyformer.ops.pairwise_attention import derivatives, paths
from everyformer.ops.pairwise_attention.operands import Incoming, Operands, split


@torch.library.custom_op("everyformer::pairwise_attention_forward", mutates_args=())
def forward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    key_padding: Tensor | None,
    seed: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Output and LSE."""
    return paths.forward(
        Operands(q, k, v, bias, gain, key_padding, seed, causal, scale, dropout)
    )


@forward_op.register_fake
def _forward_fake(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    statistics = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=statistics)


@torch.library.custom_op("everyformer::pairwise_attention_backward", mutates_args=())
def gradients_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    key_padding: Tensor | None,
    seed: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float,
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    needs_bias: bool,
    needs_gain: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v, bias and gain; empty where not needed."""
    return paths.gradients(
        Operands(q, k, v, bias, gain, key_padding, seed, causal, scale, dropout),
        Incoming(grad_out, out, lse, needs_bias, needs_gain),
    )


@gradients_op.register_fake
def _gradients_fake(*given: Any) -> tuple[Tensor, ...]:
    x, incoming = split(given)
    pairs = (x.bias, incoming.needs_bias), (x.gain, incoming.needs_gain)
    return (
        *(y.new_empty(y.shape) for y in x[:3]),
        *(
            x.q.new_empty(0) if y is None or not needed else y.new_empty(y.shape)
            for y, needed in pairs
        ),
    )


def _backward(ctx: Any, grad_out: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return derivatives.pull_back(ctx, grad_out, gradients_op)


forward_op.register_autograd(_backward, setup_context=derivatives.keep)
gradients_op.register_autograd(
    derivatives.pull_back_gradients, setup_context=derivatives.keep_gradients
)
