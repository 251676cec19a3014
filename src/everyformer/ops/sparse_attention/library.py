"""What torch knows of the operator: derivatives, vmap and custom ops.

The first derivative is that of the kernels, the second that of `plain`.
"""

from typing import Any

import torch
from torch import Tensor

from everyformer.ops.attention_library import output_and_lse
from everyformer.ops.attention_rules import Gradients, Parts, Rules
from everyformer.ops.sparse_attention import paths, plain
from everyformer.ops.sparse_attention.operands import Incoming, Operands
from everyformer.ops.sparse_attention.plans import plan_with

RULES = Rules(
    Parts(
        Operands, Incoming, paths.forward, paths.gradients, plain.attend,
        differentiable=3, whole=True, apart=paths.apart,
    )
)  # fmt: skip


def planned(*given: Any) -> Operands:
    """The operands of arguments with a handle instead of a plan."""
    *tensors, handle, scale, dropout = given
    return Operands._make((*tensors, plan_with(handle), scale, dropout))


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
    return paths.forward(planned(q, k, v, key_padding, seed, handle, scale, dropout))


@forward_op.register_fake
def _forward_fake(*given: Any) -> tuple[Tensor, Tensor]:
    return output_and_lse(given)


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
) -> Tensor:
    """The gradients of q, k and v in one tensor [3, b, h, n, d].

    As outputs of an operator, three would have to share no memory: two of what the kernels
    write one after the other would be copied.
    """
    x = planned(q, k, v, key_padding, seed, handle, scale, dropout)
    return paths.joined_gradients(x, Incoming(grad_out, out, lse))


@gradients_op.register_fake
def _gradients_fake(grad_out: Tensor, q: Tensor, *_: object) -> Tensor:
    return q.new_empty(3, *q.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    RULES.keep(ctx, planned(*inputs), output)


def _gradients(*given: Any) -> Any:
    """The backward pass, its arguments as the rules order them."""
    *tensors, plan, scale, dropout, grad_out, out, lse = given
    found = gradients_op(grad_out, *tensors, out, lse, plan.handle, scale, dropout)
    return found.unbind()


def _pull_back(ctx: Any, grad_out: Tensor, *_: Tensor | None) -> Gradients:
    return RULES.pull_back(ctx, grad_out, _gradients)


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
    grad_out, *tensors, out, lse, handle, scale, dropout = inputs
    x = planned(*tensors, handle, scale, dropout)
    RULES.keep_gradients(ctx, (*x, grad_out, out, lse), output)


def _pull_back_gradients(ctx: Any, upstream: Tensor) -> Gradients:
    *found, dgrad, _, _ = RULES.pull_back_gradients(ctx, *upstream.unbind())
    return dgrad, *found[:5], None, None, *found[5:]


forward_op.register_autograd(_pull_back, setup_context=_keep)
gradients_op.register_autograd(_pull_back_gradients, setup_context=_keep_gradients)
