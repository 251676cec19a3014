"""`torch.func.vmap` over the operator: copies of a problem become further heads.

A vector belongs to a head and to all of a batch, so the gradient of each copy's vector is
one of its own.
"""

from typing import Any

from torch import Tensor

from everyformer.ops.toeplitz_attention.operands import (
    DIFFERENTIABLE,
    TENSORS,
    Incoming,
    Operands,
)


def as_heads(function: Any, copies: int, in_dims: Any, given: Any) -> Any:
    """The results of the operator, or of its backward pass, for several copies.

    Returns:
        The results and the axes of their copies; None if masks or bits differ by copy or
        head, which more heads could not tell.
    """
    size = len(Operands._fields)
    x = Operands(*given[:size])
    dims: Any = Operands(*in_dims[:size])
    if _have_their_own(x, dims):
        return None
    heads = _Heads(copies, x.q, dims.q)
    if len(given) == size:
        out, lse, _ = function.apply(*heads.operands(x, dims))
        return (heads.back(out), heads.back(lse), x.q.new_empty(0)), (1, 1, None)
    incoming = Incoming(*given[size:])
    found = function.apply(
        *heads.operands(x, dims), *heads.incoming(incoming, in_dims[size:])
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
