"""What autograd and `torch.func` know of the operator: all derivatives, and vmap.

The first derivative is that of the kernels. The backward pass is a function of its own,
whose derivative is that of the reference, in plain torch, `STEP_ENTRIES` weights at a time.
Third derivatives and all further ones are those of plain torch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from everyformer.ops.eager import is_forward_mode, is_transformed
from everyformer.ops.pairwise_attention import paths
from everyformer.ops.pairwise_attention.operands import Incoming, Operands, split
from everyformer.ops.pairwise_attention.reference import attend

STEP_ENTRIES = 2**24
"""Weights whose second derivatives are taken together, if a sequence has fewer."""

Dims = tuple[int | None, ...]
"""The axis of each argument that `torch.func.vmap` runs over."""


class Direct(torch.autograd.Function):
    """The operator without the dispatcher, which costs more than the kernels at small n."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The output alone."""
        *tensors, ctx.causal, ctx.scale, ctx.dropout = given
        out, lse = paths.forward(Operands(*given))
        ctx.save_for_backward(*tensors, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By the kernels; recorded where somebody differentiates once more."""
        recorded = torch.is_grad_enabled() or is_transformed()
        return pull_back(ctx, grad_out, Gradients.apply if recorded else Gradients.forward)


class Transformed(torch.autograd.Function):
    """The same for `torch.func`, with the LSE as an output."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Output and LSE."""
        return paths.forward(Operands(*given))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep everything."""
        keep(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, *_: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By the kernels."""
        return pull_back(ctx, grad_out, Gradients.apply)

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *given: Any) -> tuple[Any, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Copies become a larger batch."""
        return _copies(Transformed, info.batch_size, in_dims, given)


class Gradients(torch.autograd.Function):
    """The backward pass: by the kernels, itself differentiable."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The gradients of q, k, v, bias and gain."""
        return paths.gradients(*split(given))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the gradients are functions of."""
        keep_gradients(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The second derivative."""
        return pull_back_gradients(ctx, *upstream)

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *given: Any) -> tuple[Any, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Copies become a larger batch."""
        return _copies(Gradients, info.batch_size, in_dims, given)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep the inputs and outputs of the forward pass."""
    *tensors, ctx.causal, ctx.scale, ctx.dropout = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def pull_back(ctx: Any, grad_out: Tensor, gradients: Any) -> tuple[Tensor | None, ...]:
    """The gradients of all arguments, by the function given."""
    *tensors, out, lse = ctx.saved_tensors
    x = Operands._make((*tensors, ctx.causal, ctx.scale, ctx.dropout))
    others = [None] * (len(x) - 5)
    if is_forward_mode():
        return *_plain_gradients(x, grad_out), *others
    needs = ctx.needs_input_grad[3:5]
    *qkv, dbias, dgain = gradients(*x, *Incoming(grad_out, out, lse, *needs))
    pairs = (y if needed else None for y, needed in zip((dbias, dgain), needs, strict=True))
    return *qkv, *pairs, *others


def keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep what the gradients are functions of; `out` and the LSE follow from it."""
    x, incoming = split(inputs)
    *tensors, ctx.causal, ctx.scale, ctx.dropout = x
    ctx.needs = incoming.needs_bias, incoming.needs_gain
    ctx.save_for_backward(*tensors, incoming.grad_out)


def pull_back_gradients(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
    """The derivative of the gradients, in plain torch, a part of the batch at a time."""
    *tensors, grad_out = ctx.saved_tensors
    whole = Operands._make((*tensors, ctx.causal, ctx.scale, ctx.dropout))
    needed = (True, True, True, *ctx.needs)
    wanted = [
        slope if needs else torch.zeros_like(y)
        for y, slope, needs in zip(whole[:5], upstream, needed, strict=True)
        if y is not None
    ]
    b, h, n_q, n_k = whole.sizes
    together = max(1, STEP_ENTRIES // (h * n_q * n_k))
    parts: list[Sequence[Tensor]] = []
    for start in range(0, b, together):
        some = slice(start, start + together)
        x = Operands._make(_part(y, some) for y in whole)

        def gradients(
            grad: Tensor, *y: Tensor, x: Operands = x, first: int = start
        ) -> tuple[Tensor, ...]:
            given = Operands._make((*_filled(y, x[:5]), *x[5:]))
            found = _plain_gradients(given, grad, first)
            return tuple(g for g in found if g is not None)

        there = [y for y in x[:5] if y is not None]
        pull: Any = torch.func.vjp(gradients, grad_out[some], *there)[1]
        parts.append(pull(tuple(_part(y, some) for y in wanted)))
    given = [grad_out, *(y for y in whole[:5] if y is not None)]
    dgrad, *found = (
        torch.cat(column) if y.shape[0] == b else torch.stack(column).sum(0)
        for y, column in zip(given, zip(*parts, strict=True), strict=True)
    )
    others = [None] * (len(whole) - 5)
    return *_filled(found, whole[:5]), *others, dgrad, *[None] * 4


def _part(x: Any, some: slice) -> Any:
    """Some of a batch, or what the whole batch shares."""
    return x[some] if isinstance(x, Tensor) and x.shape[0] > 1 else x


def _plain_gradients(
    x: Operands, grad_out: Tensor, first: int = 0
) -> tuple[Tensor | None, ...]:
    """Those of the reference, differentiable themselves."""

    def attended(*given: Tensor) -> Tensor:
        return attend(Operands._make((*_filled(given, x[:5]), *x[5:])), first)

    pull: Any = torch.func.vjp(attended, *(y for y in x[:5] if y is not None))[1]
    return tuple(_filled(pull(grad_out), x[:5]))


def _filled(found: Sequence[Tensor], like: Sequence[Tensor | None]) -> list[Any]:
    """The tensors in the places where there is one, None elsewhere."""
    left = iter(found)
    return [None if x is None else next(left) for x in like]


def _copies(function: Any, copies: int, in_dims: Dims, given: Any) -> tuple[Any, Any]:
    """All results for several copies of a problem.

    By one problem with a larger batch, unless a batch shares its bias or gain: these have
    gradients for each copy, summed over its batch, so the copies go one by one; and also
    if weights are dropped, by their place in the batch.
    """

    def each(x: Any, dim: int | None) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x.expand(copies, *x.shape) if dim is None else x.movedim(dim, 0)

    stacked = list(map(each, given, in_dims))
    batch = stacked[0].shape[1]
    keeps = Operands(*given[: len(Operands._fields)]).dropout == 0.0
    if keeps and all(x is None or x.shape[1] == batch for x in stacked[3:5]):
        joined = (x.flatten(0, 1) if isinstance(x, Tensor) else x for x in stacked)
        results = [
            x.unflatten(0, (copies, -1)) if x.numel() else x.expand(copies, 0)
            for x in function.apply(*joined)
        ]
    else:
        rows = [
            function.apply(*(x[one] if isinstance(x, Tensor) else x for x in stacked))
            for one in range(copies)
        ]
        results = [torch.stack(column) for column in zip(*rows, strict=True)]
    return tuple(results), tuple(0 for _ in results)
