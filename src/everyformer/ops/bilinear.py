"""Operators that are linear in each of their two tensors, as torch wants to know them.

Their derivatives are such operators again, and each operator says which; forward mode is
the product rule.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from everyformer.ops.copies import Dims
from everyformer.ops.eager import is_forward_mode, is_transformed

Gradients = tuple[Tensor | None, ...]


def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep both factors, and the numbers after them."""
    ctx.numbers = inputs[2:]
    ctx.save_for_backward(*inputs[:2])


def bilinear(
    forward: Callable[..., Tensor],
    pull_back: Callable[[Any, Tensor], Gradients],
    of_copies: Callable[[Any, int, Dims, Any], tuple[Tensor, int]],
) -> Any:
    """The `autograd.Function` of an operator.

    Args:
        forward: From two tensors and numbers to one tensor.
        pull_back: From what `keep` kept and the gradient of the result to the gradients of
            all arguments.
        of_copies: vmap: from the function, the number of copies, their axes and all
            arguments to the result and the axis of its copies.
    """

    class Bilinear(torch.autograd.Function):
        @staticmethod
        def forward(*given: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return forward(*given)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            keep(ctx, inputs, output)
            ctx.save_for_forward(*inputs[:2])

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Gradients:  # pyright: ignore[reportIncompatibleMethodOverride]
            return pull_back(ctx, grad)

        @staticmethod
        def jvp(ctx: Any, da: Tensor | None, db: Tensor | None, *_: None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            a, b = ctx.saved_tensors
            found: list[Any] = []
            if da is not None:
                found.append(Bilinear.apply(da, b, *ctx.numbers))
            if db is not None:
                found.append(Bilinear.apply(a, db, *ctx.numbers))
            return torch.stack(found).sum(0)

        @staticmethod
        def vmap(info: Any, in_dims: Dims, *given: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return of_copies(Bilinear, info.batch_size, in_dims, given)

    return Bilinear


def register(
    custom_op: Any,
    pull_back: Callable[..., Gradients],
    ops: tuple[Any, ...],
    functions: tuple[Any, ...],
) -> None:
    """Tell torch the derivative of a custom op.

    Args:
        custom_op: The operator.
        pull_back: As of `bilinear`; further arguments are the operators it is made of.
        ops: These, as custom ops.
        functions: These, as `autograd.Function`s, for transforms and forward mode.
    """

    def backward(ctx: Any, grad: Tensor) -> Gradients:
        moved = is_transformed() or is_forward_mode()
        return pull_back(ctx, grad, *([f.apply for f in functions] if moved else ops))

    custom_op.register_autograd(backward, setup_context=keep)
