"""The operator: checks, and registration with `torch.library`.

On a CUDA device the Triton kernels run, elsewhere the groups of `grouped`. Both are custom
ops, so that `torch.compile`, autocast, activation checkpointing and fake tensors know them.
"""

import math
from importlib import import_module
from typing import Any, Literal, overload

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from everyformer.errors import InputError
from everyformer.ops.eager import autocasted, is_plain
from everyformer.ops.sparse_attention import grouped
from everyformer.ops.sparse_attention.plans import Plan, plan_of, plan_with
from everyformer.patterns import Part

Saved = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor]
"""q, k, v, key_padding, out and lse, for the backward pass."""

MAX_HEAD_SIZE = 128
"""Of the Triton kernels; larger heads run as on a CPU."""


@overload
def sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    part: Part,
    *,
    scale: float | None = None,
    key_padding: Tensor | None = None,
    need_lse: Literal[False] = False,
) -> Tensor: ...
@overload
def sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    part: Part,
    *,
    scale: float | None = None,
    key_padding: Tensor | None = None,
    need_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def sparse_attention(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n d"],
    part: Part,
    *,
    scale: float | None = None,
    key_padding: Bool[Tensor, "b n"] | None = None,
    need_lse: bool = False,
) -> Float[Tensor, "b h n d"] | tuple[Tensor, Float[Tensor, "b h n"]]:
    """Softmax attention in which token k attends to the tokens of A_k alone.

        o_k = sum_{j in A_k} softmax_{j in A_k}(scale q_k . k_j) v_j

    Time and memory follow the number of connections, forward and backward. With
    `torch.compile` it is one node of a graph (torch 2.13; with 2.11, which takes no pattern
    for a constant, only within the layer `SparseAttention`).

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        part: The sets A_k, for as many tokens as there are. What is prepared for it is
            kept as long as the object lives: use the same one again.
        scale: Of the scores; 1/sqrt(d) by default.
        key_padding: True for keys that do not count. A query without keys gives 0.
        need_lse: Whether to return log sum_j exp(score_kj) too, -inf without keys. It has
            no gradient.

    Raises:
        InputError: If shapes, dtypes or devices do not fit; all reasons at once.

    Example:
        >>> from everyformer.patterns import Window
        >>> q = k = torch.zeros(1, 1, 3, 1)
        >>> v = torch.tensor([[[[1.0], [3.0], [9.0]]]])
        >>> sparse_attention(q, k, v, Window(3, 1, 0)).flatten()
        tensor([1., 2., 6.])
    """
    _check(q, k, v, part.n, key_padding)
    handle = _handle_of(part)
    if not need_lse:
        return attend(q, k, v, handle, scale=scale, key_padding=key_padding)
    q, k, v = autocasted(q, k, v)
    out, lse = _forward_op(q, k, v, key_padding, handle, _factor(q, scale))
    return out, _natural(q, lse)


def attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n d"],
    handle: int,
    *,
    scale: float | None = None,
    key_padding: Bool[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b h n d"]:
    """The output, by the handle of a plan, which lives as long as its part.

    Nothing is checked.
    """
    q, k, v = autocasted(q, k, v)
    factor = _factor(q, scale)
    if is_plain(q, k, v):
        found: Any = _Direct.apply(q, k, v, key_padding, plan_with(handle), factor)
        return found
    return _forward_op(q, k, v, key_padding, handle, factor)[0]


def _factor(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else float(scale)


@torch.compiler.assume_constant_result
def _handle_of(part: Part) -> int:
    return plan_of(part).handle


def _check(q: Tensor, k: Tensor, v: Tensor, n: int, key_padding: Tensor | None) -> None:
    wrong: list[str] = []
    if q.dim() != 4 or k.shape != q.shape or v.shape != q.shape:
        wrong.append(
            f"q, k, v have shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}; "
            "they must all be (b, h, n, d)"
        )
    elif q.shape[2] != n:
        wrong.append(
            f"there are {q.shape[2]} tokens, but the pattern is for n={n}; make it for "
            f"{q.shape[2]}"
        )
    if q.numel() == 0:
        wrong.append(f"q {tuple(q.shape)} is empty")
    if len({q.dtype, k.dtype, v.dtype}) > 1 or not q.is_floating_point():
        wrong.append(f"q, k, v have dtypes {q.dtype}, {k.dtype}, {v.dtype}; give one kind")
    if key_padding is not None and (
        key_padding.dtype != torch.bool or key_padding.shape != (q.shape[0], q.shape[-2])
    ):
        wrong.append(
            f"key_padding has shape {tuple(key_padding.shape)} and dtype "
            f"{key_padding.dtype}; give bool ({q.shape[0]}, {q.shape[-2]})"
        )
    given = [x for x in (q, k, v, key_padding) if x is not None]
    if len({x.device for x in given}) > 1:
        wrong.append(f"tensors lie on {sorted({str(x.device) for x in given})}; use one")
    if wrong:
        msg = f"sparse_attention cannot run: {'; '.join(wrong)}."
        raise InputError(msg)


def _by_kernels(q: Tensor) -> bool:
    return q.is_cuda and q.dtype != torch.float64 and q.shape[-1] <= MAX_HEAD_SIZE


def _launch() -> Any:
    """The Triton kernels, imported where there is a GPU and only there."""
    return import_module("everyformer.ops.sparse_attention.launch")


def _forward(
    q: Tensor, k: Tensor, v: Tensor, key_padding: Tensor | None, plan: Plan, scale: float
) -> tuple[Tensor, Tensor]:
    """The output, and the LSE: in base 2 from the kernels, natural otherwise."""
    if _by_kernels(q):
        return _launch().forward(q, k, v, plan.walks(q.device), scale, key_padding)
    return grouped.forward(q, k, v, plan.groups, scale, key_padding)


def _gradients(
    grad_out: Tensor, saved: Saved, plan: Plan, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, key_padding, out, lse = saved
    given = (grad_out, q, k, v, out, lse)
    if _by_kernels(q):
        walks = plan.walks(q.device)
        return _launch().backward(*given, walks, scale, key_padding)
    return grouped.backward(*given, plan.groups, scale, key_padding)


def _natural(q: Tensor, lse: Tensor) -> Tensor:
    return lse * math.log(2) if _by_kernels(q) else lse


@torch.library.custom_op("everyformer::sparse_attention", mutates_args=())
def _forward_op(
    q: Tensor, k: Tensor, v: Tensor, key_padding: Tensor | None, handle: int, scale: float
) -> tuple[Tensor, Tensor]:
    return _forward(q, k, v, key_padding, plan_with(handle), scale)


@_forward_op.register_fake
def _forward_fake(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    statistics = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=statistics)


@torch.library.custom_op("everyformer::sparse_attention_backward", mutates_args=())
def _backward_op(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding: Tensor | None,
    out: Tensor,
    lse: Tensor,
    handle: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    saved = (q, k, v, key_padding, out, lse)
    found = _gradients(grad_out, saved, plan_with(handle), scale)
    # Outputs of an operator may not share memory.
    dq, dk, dv = (x.clone() if x.storage_offset() else x for x in found)
    return dq, dk, dv


@_backward_op.register_fake
def _backward_fake(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, key_padding, ctx.handle, ctx.scale = inputs
    out, lse = output
    ctx.save_for_backward(q, k, v, key_padding, out, lse)
    ctx.mark_non_differentiable(lse)


def _backward(ctx: Any, grad_out: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    gradients = _backward_op(grad_out, *ctx.saved_tensors, ctx.handle, ctx.scale)
    return *gradients, None, None, None


_forward_op.register_autograd(_backward, setup_context=_setup_context)


class _Direct(torch.autograd.Function):
    """The output without the dispatcher, which costs more than the kernels at small n."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, key_padding, ctx.plan, ctx.scale = given
        out, lse = _forward(*given)
        ctx.save_for_backward(q, k, v, key_padding, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (_pull_once if torch.is_grad_enabled() else _pull)(ctx, grad_out)


def _pull(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    gradients = _gradients(grad_out, ctx.saved_tensors, ctx.plan, ctx.scale)
    return *gradients, None, None, None


_pull_once = torch.autograd.function.once_differentiable(_pull)
