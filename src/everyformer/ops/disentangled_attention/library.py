"""The operator as a custom op, for `torch.compile`, export and fake tensors."""

from typing import Any

import torch
from torch import Tensor

from everyformer.ops.disentangled_attention import derivatives, paths
from everyformer.ops.disentangled_attention.operands import Incoming, Operands, split


@torch.library.custom_op("everyformer::disentangled_attention_forward", mutates_args=())
def forward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    c2p: Tensor | None,
    p2c: Tensor | None,
    index: Tensor,
    key_padding: Tensor | None,
    seed: Tensor | None,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Output and LSE."""
    return paths.forward(
        Operands(q, k, v, c2p, p2c, index, key_padding, seed, scale, dropout)
    )


@forward_op.register_fake
def _forward_fake(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    statistics = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=statistics)


@torch.library.custom_op("everyformer::disentangled_attention_backward", mutates_args=())
def gradients_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    c2p: Tensor | None,
    p2c: Tensor | None,
    index: Tensor,
    key_padding: Tensor | None,
    seed: Tensor | None,
    scale: float,
    dropout: float,
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    needs_c2p: bool,
    needs_p2c: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v, c2p and p2c; empty where not needed."""
    x = Operands(q, k, v, c2p, p2c, index, key_padding, seed, scale, dropout)
    found: Any = paths.gradients(x, Incoming(grad_out, out, lse, needs_c2p, needs_p2c))
    return found


@gradients_op.register_fake
def _gradients_fake(*given: Any) -> tuple[Tensor, ...]:
    x, incoming = split(given)
    needed = (True, True, True, incoming.needs_c2p, incoming.needs_p2c)
    return tuple(
        x.q.new_empty(0) if y is None or not wanted else y.new_empty(y.shape)
        for y, wanted in zip(x[:5], needed, strict=True)
    )


def _backward(ctx: Any, grad_out: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    return derivatives.pull_back(ctx, grad_out, gradients_op)


forward_op.register_autograd(_backward, setup_context=derivatives.keep)
gradients_op.register_autograd(
    derivatives.pull_back_gradients, setup_context=derivatives.keep_gradients
)
