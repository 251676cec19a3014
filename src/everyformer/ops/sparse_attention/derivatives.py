"""What autograd and `torch.func` know of the operator: all derivatives, and vmap.

The first derivative is that of the kernels. The backward pass is a function of its own,
whose derivative is that of `plain`. Further ones are those of plain torch.
"""

from typing import Any

import torch
from torch import Tensor

from everyformer.ops.copies import Dims, in_one_batch, one_by_one
from everyformer.ops.eager import is_forward_mode, is_transformed
from everyformer.ops.sparse_attention import paths, plain
from everyformer.ops.sparse_attention.plans import PreparedPart


class Direct(torch.autograd.Function):
    """The output without the dispatcher, which costs more than the kernels at small n."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The output alone."""
        *tensors, ctx.plan, ctx.scale, ctx.dropout = given
        out, lse = paths.forward(*given)
        ctx.save_for_backward(*tensors, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By the kernels; recorded where somebody differentiates once more."""
        if torch.is_grad_enabled() or is_transformed() or is_forward_mode():
            return pull_back(ctx, grad_out)
        settings = ctx.plan, ctx.scale, ctx.dropout
        found = paths.gradients(grad_out, ctx.saved_tensors, *settings)
        return *found, None, None, None, None, None


class Transformed(torch.autograd.Function):
    """The same for `torch.func`, with the LSE as an output."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Output and LSE."""
        return paths.forward(*given)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep everything."""
        *tensors, ctx.plan, ctx.scale, ctx.dropout = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, *_: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By the kernels."""
        return pull_back(ctx, grad_out)

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *given: Any) -> tuple[Any, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Copies become a larger batch; one by one where weights are dropped."""
        return _of_copies(Transformed, info.batch_size, in_dims, given)


class Gradients(torch.autograd.Function):
    """The backward pass: by the kernels, itself differentiable."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The gradients of q, k and v."""
        grad_out, *saved, plan, scale, dropout = given
        found: Any = tuple(saved)
        return paths.apart(paths.gradients(grad_out, found, plan, scale, dropout))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the gradients are functions of."""
        *tensors, _, _, ctx.plan, ctx.scale, ctx.dropout = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The second derivative."""
        return pull_back_gradients(ctx, ctx.plan, upstream)

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *given: Any) -> tuple[Any, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As in the forward pass."""
        return _of_copies(Gradients, info.batch_size, in_dims, given)


def pull_back(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of all arguments, recorded."""
    if is_forward_mode():
        q, k, v, key_padding, seed, *_ = ctx.saved_tensors
        fixed = (ctx.plan, ctx.scale, key_padding, seed, ctx.dropout)
        found = _plain_gradients(fixed, grad_out, q, k, v)
    else:
        settings = ctx.plan, ctx.scale, ctx.dropout
        found = Gradients.apply(grad_out, *ctx.saved_tensors, *settings)
    dq, dk, dv = found  # pyright: ignore[reportGeneralTypeIssues]
    return dq, dk, dv, None, None, None, None, None


def pull_back_gradients(
    ctx: Any, plan: PreparedPart, upstream: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """The derivative of the gradients by grad_out, q, k and v, in plain torch."""
    grad_out, q, k, v, key_padding, seed = ctx.saved_tensors
    fixed = (plan, ctx.scale, key_padding, seed, ctx.dropout)

    def gradients(*x: Tensor) -> tuple[Tensor, ...]:
        return _plain_gradients(fixed, *x)

    pull: Any = torch.func.vjp(gradients, grad_out, q, k, v)[1]
    return *pull(upstream), *[None] * 7


Fixed = tuple[PreparedPart, float, Tensor | None, Tensor | None, float]
"""What has no derivative: plan, scale, key_padding, seed and dropout."""


def _plain_gradients(fixed: Fixed, grad_out: Tensor, *qkv: Tensor) -> tuple[Tensor, ...]:
    """Those of `plain`, differentiable themselves."""
    plan, scale, key_padding, seed, dropout = fixed
    options = scale, key_padding, seed, dropout

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return plain.forward(q, k, v, plan.groups, *options)[0]

    pull: Any = torch.func.vjp(attend, *qkv)[1]
    return pull(grad_out)


def _of_copies(function: Any, copies: int, in_dims: Dims, given: Any) -> tuple[Any, Any]:
    """The results for several copies of a problem, each as it would be alone."""
    if given[-1] > 0.0:  # what is dropped depends on the place in the batch
        return one_by_one(function, copies, in_dims, given)
    return in_one_batch(function, copies, in_dims, given)
