"""What autograd knows of the operator: all derivatives.

The first derivative is that of the kernels. The backward pass is a function of its own,
whose derivative is that of the reference, in plain torch: O(n_q n_k) memory. Further
derivatives are those of plain torch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from everyformer.ops.disentangled_attention import paths
from everyformer.ops.disentangled_attention.operands import (
    TENSORS,
    Incoming,
    Operands,
    split,
)
from everyformer.ops.disentangled_attention.reference import (
    disentangled_attention_reference,
)
from everyformer.ops.eager import is_forward_mode, is_transformed


class Direct(torch.autograd.Function):
    """The operator without the dispatcher, which costs more than the kernels at small n."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The output alone."""
        ctx.numbers = given[TENSORS:]
        out, lse = paths.forward(Operands(*given))
        ctx.save_for_backward(*given[:TENSORS], out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By the kernels; recorded where somebody differentiates once more."""
        recorded = torch.is_grad_enabled() or is_transformed()
        return pull_back(ctx, grad_out, Gradients.apply if recorded else Gradients.forward)


class Gradients(torch.autograd.Function):
    """The backward pass: by the kernels, itself differentiable."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The gradients of q, k, v, c2p and p2c."""
        return paths.gradients(*split(given))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the gradients are functions of."""
        keep_gradients(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The second derivative."""
        return pull_back_gradients(ctx, *upstream)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep the inputs and outputs of the forward pass."""
    ctx.numbers = inputs[TENSORS:]
    ctx.save_for_backward(*inputs[:TENSORS], *output)
    ctx.mark_non_differentiable(output[1])


def pull_back(ctx: Any, grad_out: Tensor, gradients: Any) -> tuple[Tensor | None, ...]:
    """The gradients of all arguments, by the function given."""
    *tensors, out, lse = ctx.saved_tensors
    x = Operands._make((*tensors, *ctx.numbers))
    others = (None,) * (len(x) - 5)
    if is_forward_mode():
        return *_plain_gradients(x, grad_out), *others
    needs = ctx.needs_input_grad[3:5]
    *found, dc2p, dp2c = gradients(*x, grad_out, out, lse, *needs)
    terms = dc2p if needs[0] else None, dp2c if needs[1] else None
    return *found, *terms, *others


def keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep what the gradients are functions of; `out` and the LSE follow from it."""
    x, incoming = split(inputs)
    ctx.numbers = x[TENSORS:]
    ctx.needs = incoming.needs_c2p, incoming.needs_p2c
    ctx.save_for_backward(*x[:TENSORS], incoming.grad_out)


def pull_back_gradients(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
    """The derivative of the gradients, in plain torch."""
    *tensors, grad_out = ctx.saved_tensors
    x = Operands._make((*tensors, *ctx.numbers))
    terms = x[3:5]

    def gradients(grad: Tensor, *y: Tensor) -> tuple[Tensor, ...]:
        changed = Operands._make((*y[:3], *_filled(y[3:], terms), *x[5:]))
        return tuple(g for g in _plain_gradients(changed, grad) if g is not None)

    wanted = [
        slope if needed else torch.zeros_like(y)
        for y, slope, needed in zip(terms, upstream[3:], ctx.needs, strict=True)
        if y is not None
    ]
    there = (y for y in x[:5] if y is not None)
    pull: Any = torch.func.vjp(gradients, grad_out, *there)[1]
    dgrad, dq, dk, dv, *rows = pull((*upstream[:3], *wanted))
    others = (None,) * (len(x) - 5), (None,) * (len(Incoming._fields) - 1)
    return dq, dk, dv, *_filled(rows, terms), *others[0], dgrad, *others[1]


def _plain_gradients(x: Operands, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    """Those of the reference, differentiable themselves."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *rows: Tensor) -> Tensor:
        c2p, p2c = _filled(rows, x[3:5])
        return disentangled_attention_reference(
            q, k, v, c2p, p2c, x.bucket_of,
            scale=x.scale, key_padding=x.key_padding, dropout=x.dropout, seed=x.seed,
        )  # fmt: skip

    pull: Any = torch.func.vjp(attend, *(y for y in x[:5] if y is not None))[1]
    dq, dk, dv, *rows = pull(grad_out)
    return dq, dk, dv, *_filled(rows, x[3:5])


def _filled(rows: Sequence[Tensor], like: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The rows in the places where there is a term, None elsewhere."""
    left = iter(rows)
    return [None if x is None else next(left) for x in like]
