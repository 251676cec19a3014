"""What autograd and `torch.func` know of the operator: all derivatives, and vmap.

The first derivative is that of the kernels. The backward pass is a function of its own,
whose derivative is that of the reference, in plain torch: O(n_q n_k) memory, `STEP_ENTRIES`
weights at a time. Third derivatives and all further ones are those of plain torch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from everyformer.ops.eager import is_forward_mode, is_transformed
from everyformer.ops.toeplitz_attention import paths
from everyformer.ops.toeplitz_attention.reference import toeplitz_attention_reference

STEP_ENTRIES = 2**24
"""Weights whose second derivatives are taken together, if a sequence has fewer."""

Dims = tuple[int | None, ...]
"""The axis of each argument that `torch.func.vmap` runs over."""


class Direct(torch.autograd.Function):
    """The operator without the dispatcher, which costs more than the kernels at small n."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The output alone."""
        q, k, v, bias, gain, key_padding, ctx.causal, ctx.scale = given
        out, lse, table = paths.forward(*given)
        ctx.save_for_backward(q, k, v, bias, gain, key_padding, out, lse, table)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By the kernels; recorded where somebody differentiates once more."""
        recorded = torch.is_grad_enabled() or is_transformed()
        return pull_back(ctx, grad_out, Gradients.apply if recorded else paths.gradients)


class Transformed(torch.autograd.Function):
    """The same for `torch.func`, with the statistics as outputs."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Output, LSE and table."""
        return paths.forward(*given)

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
        """Copies become further heads; one by one where their paddings differ."""
        if in_dims[5] is not None:
            return _one_by_one(Transformed, info.batch_size, in_dims, given)
        q, k, v, bias, gain, key_padding, causal, scale = given
        heads = _Heads(info.batch_size, q, in_dims[0])
        q, k, v = (heads.of(x, dim) for x, dim in zip(given[:3], in_dims[:3], strict=True))
        bias, gain = heads.rows(bias, in_dims[3]), heads.rows(gain, in_dims[4])
        found: Any = Transformed.apply(q, k, v, bias, gain, key_padding, causal, scale)
        out, lse, _ = found
        return (heads.back(out), heads.back(lse), q.new_empty(0)), (1, 1, None)


class Gradients(torch.autograd.Function):
    """The backward pass: by the kernels, itself differentiable."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The gradients of q, k, v, bias and gain."""
        return paths.gradients(*given)

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
        """As in the forward pass."""
        if in_dims[8] is not None:
            return _one_by_one(Gradients, info.batch_size, in_dims, given)
        grad_out, bias, gain = given[0], given[6], given[7]
        heads = _Heads(info.batch_size, grad_out, in_dims[0])
        tensors = [heads.of(x, dim) for x, dim in zip(given[:6], in_dims[:6], strict=True)]
        vectors = heads.rows(bias, in_dims[6]), heads.rows(gain, in_dims[7])
        table = grad_out.new_empty(0)
        found: Any = Gradients.apply(*tensors, *vectors, *given[8:13], table)
        needed = given[11] and bias is not None, given[12] and gain is not None
        shared = [
            x is not None and (x if dim is None else x.select(dim, 0)).shape[0] == 1
            for x, dim in ((bias, in_dims[6]), (gain, in_dims[7]))
        ]
        rows = [
            heads.rows_back(x, alone) if there else x
            for x, there, alone in zip(found[3:], needed, shared, strict=True)
        ]
        dims = [0 if there else None for there in needed]
        return (*(heads.back(x) for x in found[:3]), *rows), (1, 1, 1, *dims)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep the inputs and outputs of the forward pass."""
    q, k, v, bias, gain, key_padding, ctx.causal, ctx.scale = inputs
    out, lse, table = output
    ctx.save_for_backward(q, k, v, bias, gain, key_padding, out, lse, table)
    ctx.mark_non_differentiable(lse, table)


def pull_back(ctx: Any, grad_out: Tensor, gradients: Any) -> tuple[Tensor | None, ...]:
    """The gradients of all arguments, by the function given."""
    q, k, v, bias, gain, key_padding, out, lse, table = ctx.saved_tensors
    needs_bias, needs_gain = ctx.needs_input_grad[3:5]
    if is_forward_mode():
        options = (key_padding, ctx.causal, ctx.scale)
        found = _plain_gradients(*options, grad_out, (q, k, v), (bias, gain))
        return *found, None, None, None
    dq, dk, dv, dbias, dgain = gradients(
        grad_out, q, k, v, out, lse, bias, gain, key_padding, ctx.causal, ctx.scale,
        needs_bias, needs_gain, table,
    )  # fmt: skip
    dbias, dgain = dbias if needs_bias else None, dgain if needs_gain else None
    return dq, dk, dv, dbias, dgain, None, None, None


def keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep what the gradients are functions of; `out` and the LSE follow from it."""
    grad_out, q, k, v, _, _, bias, gain, key_padding, ctx.causal, ctx.scale = inputs[:11]
    ctx.needs = tuple(inputs[11:13])
    ctx.save_for_backward(grad_out, q, k, v, bias, gain, key_padding)


def pull_back_gradients(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
    """The derivative of the gradients, in plain torch, a part of the batch at a time."""
    grad_out, q, k, v, bias, gain, key_padding = ctx.saved_tensors
    vectors = [x for x in (bias, gain) if x is not None]
    wanted = [
        slope if needed else torch.zeros_like(x)
        for x, slope, needed in zip((bias, gain), upstream[3:], ctx.needs, strict=True)
        if x is not None
    ]
    together = max(1, STEP_ENTRIES // (q.shape[1] * q.shape[2] * k.shape[2]))
    parts: list[Sequence[Tensor]] = []
    for start in range(0, q.shape[0], together):
        some = slice(start, start + together)
        padding = None if key_padding is None else key_padding[some]

        def gradients(
            grad: Tensor, *x: Tensor, padding: Tensor | None = padding
        ) -> tuple[Tensor, ...]:
            rows = _filled(x[3:], (bias, gain))
            options = (padding, ctx.causal, ctx.scale)
            found = _plain_gradients(*options, grad, x[:3], rows)
            return tuple(y for y in found if y is not None)

        tensors = (x[some] for x in (grad_out, q, k, v))
        pull: Any = torch.func.vjp(gradients, *tensors, *vectors)[1]
        parts.append(pull((*(x[some] for x in upstream[:3]), *wanted)))
    columns = list(zip(*parts, strict=True))
    dgrad, dq, dk, dv = (torch.cat(list(column)) for column in columns[:4])
    rows = [torch.stack(list(column)).sum(0) for column in columns[4:]]
    dbias, dgain = _filled(rows, (bias, gain))
    return dgrad, dq, dk, dv, None, None, dbias, dgain, *[None] * 6


def _plain_gradients(
    key_padding: Tensor | None,
    causal: bool,
    scale: float,
    grad_out: Tensor,
    qkv: Sequence[Tensor],
    vectors: Sequence[Tensor | None],
) -> tuple[Tensor | None, ...]:
    """Those of the reference, differentiable themselves."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *rows: Tensor) -> Tensor:
        bias, gain = _filled(rows, vectors)
        return toeplitz_attention_reference(
            q, k, v, bias, gain, causal=causal, scale=scale, key_padding=key_padding
        )

    there = [x for x in vectors if x is not None]
    pull: Any = torch.func.vjp(attend, *qkv, *there)[1]
    dq, dk, dv, *rows = pull(grad_out)
    return dq, dk, dv, *_filled(rows, vectors)


def _filled(rows: Sequence[Tensor], like: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The rows in the places where there is a vector, None elsewhere."""
    left = iter(rows)
    return [None if x is None else next(left) for x in like]


class _Heads:
    """Several copies of a problem as one with more heads."""

    def __init__(self, copies: int, like: Tensor, dim: int | None) -> None:
        self.copies = copies
        self.heads = like.shape[1] if dim is None else like.movedim(dim, 0).shape[2]

    def of(self, x: Tensor, dim: int | None) -> Tensor:
        """(b, copies h, ..) of copies, which lie along `dim`, or are all the same."""
        if dim is None:
            each = x[:, None].expand(-1, self.copies, *x.shape[1:])
        else:
            each = x.movedim(dim, 1)
        return each.flatten(1, 2)

    def rows(self, x: Tensor | None, dim: int | None) -> Tensor | None:
        """A vector for each head, or for all of them, as one for each head of each copy."""
        if x is None:
            return None
        each = x[None] if dim is None else x.movedim(dim, 0)
        return each.expand(self.copies, self.heads, -1).flatten(0, 1)

    def back(self, x: Tensor) -> Tensor:
        """(b, copies h, ..) as (b, copies, h, ..)."""
        return x.unflatten(1, (self.copies, self.heads))

    def rows_back(self, x: Tensor, shared: bool) -> Tensor:
        """The gradient of vectors; added up if all heads of a copy share one."""
        each = x.unflatten(0, (self.copies, self.heads))
        return each.sum(1, keepdim=True) if shared else each


def _one_by_one(function: Any, copies: int, in_dims: Dims, given: Any) -> tuple[Any, Any]:
    """All results of a function for one copy after the other."""
    results = [
        function.apply(
            *(
                x if dim is None else x.select(dim, copy)
                for x, dim in zip(given, in_dims, strict=True)
            )
        )
        for copy in range(copies)
    ]
    stacked = tuple(torch.stack(column) for column in zip(*results, strict=True))
    return stacked, tuple(0 for _ in stacked)
