"""The operator as a custom op, for `torch.compile`, export and fake tensors."""

from typing import Any

import torch
from torch import Tensor

from everyformer.ops.sparse_attention import derivatives, paths
from everyformer.ops.sparse_attention.plans import plan_with


@torch.library.custom_op("everyformer::sparse_attention", mutates_args=())
def forward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding: Tensor | None,
    seed: Tensor | None,
    handle: int,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Output and LSE."""
    return paths.forward(q, k, v, key_padding, seed, plan_with(handle), scale, dropout)


@forward_op.register_fake
def _forward_fake(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    statistics = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=statistics)


@torch.library.custom_op("everyformer::sparse_attention_backward", mutates_args=())
def gradients_op(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding: Tensor | None,
    seed: Tensor | None,
    out: Tensor,
    lse: Tensor,
    handle: int,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    saved = (q, k, v, key_padding, seed, out, lse)
    settings = plan_with(handle), scale, dropout
    return paths.apart(paths.gradients(grad_out, saved, *settings))


@gradients_op.register_fake
def _gradients_fake(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.handle, ctx.scale, ctx.dropout = inputs
    out, lse = output
    ctx.save_for_backward(*tensors, out, lse)
    ctx.mark_non_differentiable(lse)


def _pull_back(ctx: Any, grad_out: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    settings = ctx.handle, ctx.scale, ctx.dropout
    found = gradients_op(grad_out, *ctx.saved_tensors, *settings)
    return *found, None, None, None, None, None


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
    *tensors, _, _, ctx.handle, ctx.scale, ctx.dropout = inputs
    ctx.save_for_backward(*tensors)


def _pull_back_gradients(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
    return derivatives.pull_back_gradients(ctx, plan_with(ctx.handle), upstream)


forward_op.register_autograd(_pull_back, setup_context=_keep)
gradients_op.register_autograd(_pull_back_gradients, setup_context=_keep_gradients)
