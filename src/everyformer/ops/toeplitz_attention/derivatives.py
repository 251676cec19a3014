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
from everyformer.ops.toeplitz_attention.operands import (
    DIFFERENTIABLE,
    TENSORS,
    Incoming,
    Operands,
    split,
)
from everyformer.ops.toeplitz_attention.reference import attend

STEP_ENTRIES = 2**24
"""Weights whose second derivatives are taken together, if a sequence has fewer."""

Dims = tuple[int | None, ...]
"""The axis of each argument that `torch.func.vmap` runs over."""


class Direct(torch.autograd.Function):
    """The operator without the dispatcher, which costs more than the kernels at small n."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The output alone."""
        x = Operands(*given)
        ctx.numbers = x.numbers
        out, lse, table = paths.forward(x)
        ctx.save_for_backward(*x.tensors, out, lse, table)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By the kernels; recorded where somebody differentiates once more."""
        recorded = torch.is_grad_enabled() or is_transformed()
        return pull_back(ctx, grad_out, Gradients.apply if recorded else Gradients.forward)


class Transformed(torch.autograd.Function):
    """The same for `torch.func`, with the statistics as outputs."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Output, LSE and table."""
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
    def vmap(info: Any, in_dims: Any, *given: Any) -> tuple[Any, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Copies become further heads; one by one where their masks differ."""
        x = Operands(*given)
        dims: Any = Operands(*in_dims)
        if _have_their_own(x, dims):
            return _one_by_one(Transformed, info.batch_size, in_dims, given)
        heads = _Heads(info.batch_size, x.q, dims.q)
        found: Any = Transformed.apply(*heads.operands(x, dims))
        out, lse, _ = found
        return (heads.back(out), heads.back(lse), x.q.new_empty(0)), (1, 1, None)


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
    def vmap(info: Any, in_dims: Any, *given: Any) -> tuple[Any, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As in the forward pass."""
        x, incoming = split(given)
        dims: Any
        dims, of_incoming = split(in_dims)
        if _have_their_own(x, dims):
            return _one_by_one(Gradients, info.batch_size, in_dims, given)
        heads = _Heads(info.batch_size, x.q, dims.q)
        found: Any = Gradients.apply(
            *heads.operands(x, dims), *heads.incoming(incoming, of_incoming)
        )
        rows: list[Tensor] = []
        places: list[int | None] = []
        needs = incoming.needs_bias, incoming.needs_gain
        for y, dim, needed, row in zip(x[3:5], dims[3:5], needs, found[3:], strict=True):
            if y is None or not needed:
                rows.append(row)
                places.append(None)
                continue
            alone = (y if dim is None else y.select(dim, 0)).shape[0] == 1
            rows.append(heads.rows_back(row, alone))
            places.append(0)
        return (*map(heads.back, found[:3]), *rows), (1, 1, 1, *places)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep the inputs and outputs of the forward pass."""
    x = Operands(*inputs)
    ctx.numbers = x.numbers
    out, lse, table = output
    ctx.save_for_backward(*x.tensors, out, lse, table)
    ctx.mark_non_differentiable(lse, table)


def pull_back(ctx: Any, grad_out: Tensor, gradients: Any) -> tuple[Tensor | None, ...]:
    """The gradients of all arguments, by the function given."""
    *tensors, out, lse, table = ctx.saved_tensors
    x = Operands._make((*tensors, *ctx.numbers))
    needs_bias, needs_gain = ctx.needs_input_grad[3:DIFFERENTIABLE]
    others = [None] * (len(x) - DIFFERENTIABLE)
    if is_forward_mode():
        return *_plain_gradients(x, grad_out), *others
    incoming = Incoming(grad_out, out, lse, table, needs_bias, needs_gain)
    dq, dk, dv, dbias, dgain = gradients(*x, *incoming)
    dbias, dgain = dbias if needs_bias else None, dgain if needs_gain else None
    return dq, dk, dv, dbias, dgain, *others


def keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep what the gradients are functions of; `out` and the LSE follow from it."""
    x, incoming = split(inputs)
    ctx.numbers = x.numbers
    ctx.needs = incoming.needs_bias, incoming.needs_gain
    ctx.save_for_backward(*x.tensors, incoming.grad_out)


def pull_back_gradients(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
    """The derivative of the gradients, in plain torch, a part of the batch at a time."""
    *tensors, grad_out = ctx.saved_tensors
    whole = Operands._make((*tensors, *ctx.numbers))
    vectors = whole[3:DIFFERENTIABLE]
    wanted = [
        slope if needed else torch.zeros_like(y)
        for y, slope, needed in zip(vectors, upstream[3:], ctx.needs, strict=True)
        if y is not None
    ]
    b, h, n_q = whole.q.shape[:3]
    together = max(1, STEP_ENTRIES // (h * n_q * whole.k.shape[2]))
    parts: list[Sequence[Tensor]] = []
    for start in range(0, b, together):
        some = slice(start, start + together)
        shared = _of_sequences(whole, some)

        def gradients(
            grad: Tensor, *y: Tensor, shared: Operands = shared, start: int = start
        ) -> tuple[Tensor, ...]:
            rows = _filled(y[3:], vectors)
            x = Operands._make((*y[:3], *rows, *shared[DIFFERENTIABLE:]))
            return tuple(g for g in _plain_gradients(x, grad, start) if g is not None)

        given = (y[some] for y in (grad_out, *whole[:3]))
        there = (y for y in vectors if y is not None)
        pull: Any = torch.func.vjp(gradients, *given, *there)[1]
        parts.append(pull((*(y[some] for y in upstream[:3]), *wanted)))
    columns = list(zip(*parts, strict=True))
    dgrad, dq, dk, dv = (torch.cat(list(column)) for column in columns[:4])
    rows = [torch.stack(list(column)).sum(0) for column in columns[4:]]
    others = [None] * (len(whole) - DIFFERENTIABLE)
    found = dq, dk, dv, *_filled(rows, vectors), *others
    return *found, dgrad, *[None] * (len(Incoming._fields) - 1)


def _of_sequences(x: Operands, some: slice) -> Operands:
    """The operands with the masks of some sequences of the batch."""
    padding, mask = x.key_padding, x.attn_mask
    if padding is not None:
        padding = padding[some]
    if mask is not None and mask.dim() == 4 and mask.shape[0] > 1:
        mask = mask[some]
    return x._replace(key_padding=padding, attn_mask=mask)


def _plain_gradients(
    x: Operands, grad_out: Tensor, first: int = 0
) -> tuple[Tensor | None, ...]:
    """Those of the reference, differentiable themselves."""

    def plain(q: Tensor, k: Tensor, v: Tensor, *rows: Tensor) -> Tensor:
        vectors = _filled(rows, x[3:DIFFERENTIABLE])
        return attend(Operands._make((q, k, v, *vectors, *x[DIFFERENTIABLE:])), first)

    there = [y for y in x[3:DIFFERENTIABLE] if y is not None]
    pull: Any = torch.func.vjp(plain, *x[:3], *there)[1]
    dq, dk, dv, *rows = pull(grad_out)
    return dq, dk, dv, *_filled(rows, x[3:DIFFERENTIABLE])


def _filled(rows: Sequence[Tensor], like: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The rows in the places where there is a vector, None elsewhere."""
    left = iter(rows)
    return [None if x is None else next(left) for x in like]


def _have_their_own(x: Operands, dims: Any) -> bool:
    """Whether copies have masks or bits of their own, or each head of them has."""
    if any(dim is not None for dim in dims[DIFFERENTIABLE:TENSORS]) or x.dropout > 0.0:
        return True
    mask = x.attn_mask
    return mask is not None and mask.dim() > 2 and mask.shape[-3] > 1


class _Heads:
    """Several copies of a problem as one with more heads."""

    def __init__(self, copies: int, like: Tensor, dim: int | None) -> None:
        self.copies = copies
        self.heads = like.shape[1] if dim is None else like.movedim(dim, 0).shape[2]

    def operands(self, x: Operands, dims: Any) -> Operands:
        """Those of all copies, which share padding and options."""
        tensors, rows = map(self.of, x[:3], dims[:3]), map(self.rows, x[3:5], dims[3:5])
        return Operands._make((*tensors, *rows, *x[5:]))

    def incoming(self, y: Incoming, dims: Any) -> Incoming:
        """That of all copies; the table is made anew."""
        tensors = map(self.of, y[:3], dims[:3])
        return Incoming._make((*tensors, y.out.new_empty(0), *y[4:]))

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
        """(b, copies h, ..) as (b, copies, h, ..), for heads of queries or of keys."""
        return x.unflatten(1, (self.copies, -1))

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
