"""The operator: checks, and registration with `torch.library`.

On a CUDA device the Triton kernels run, elsewhere the chunked path. Both are custom ops, so
that `torch.compile`, autocast, activation checkpointing and fake tensors know them.
"""

from importlib import import_module
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from everyformer.errors import InputError
from everyformer.ops.eager import autocasted, is_plain
from everyformer.ops.toeplitz_attention import chunked

PAD = 256
"""Zeros around the vectors; as in `kernels`, which cannot be imported without Triton."""

MAX_HEAD_SIZE = 128
"""Of the Triton kernels."""


def toeplitz_attention(
    q: Float[Tensor, "b h n_q d"],
    k: Float[Tensor, "b h n_k d"],
    v: Float[Tensor, "b h n_k d"],
    bias: Float[Tensor, "h_or_1 r"] | None = None,
    gain: Float[Tensor, "h_or_1 r"] | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    key_padding: Bool[Tensor, "b n_k"] | None = None,
) -> Float[Tensor, "b h n_q d"]:
    """(softmax(scale q k^T + B) * C) v with Toeplitz B and C, in O(n) memory.

    B_ij = bias[i - j + n_k - 1], C_ij = gain[i - j + n_k - 1]. With C this is the attention
    of URPE (Luo et al. 2022, Equation 8); without C, that of T5, ALiBi and all others whose
    bias depends on i - j. Gradients go to q, k, v, bias and gain.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        bias: Added to the scores: n_q + n_k - 1 numbers for each head, or for all heads.
        gain: Multiplied on the weights, of any sign.
        causal: Query i attends to keys j <= i only.
        scale: Of the scores; 1/sqrt(d) by default.
        key_padding: True for keys that do not count. A query without keys gives 0.

    Raises:
        InputError: If shapes, dtypes or devices do not fit; all reasons at once.

    Example:
        >>> q = k = v = torch.ones(1, 1, 2, 4)
        >>> toeplitz_attention(q, k, v, gain=torch.tensor([[0.0, 1.0, 1.0]]))[0, 0, :, 0]
        tensor([0.5000, 1.0000])
    """
    _check(q, k, v, bias, gain, key_padding)
    q, k, v = autocasted(q, k, v)
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    given = (q, k, v, bias, gain, key_padding, causal, factor)
    if is_plain(q, k, v):
        return _Direct.apply(*given)  # pyright: ignore[reportReturnType]
    return _forward_op(*given)[0]


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    key_padding: Tensor | None,
) -> None:
    wrong: list[str] = []
    if q.dim() != 4 or k.dim() != 4 or v.shape != k.shape:
        wrong.append(
            f"q, k, v have shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}; "
            "they must be (b, h, n_q, d), (b, h, n_k, d), (b, h, n_k, d)"
        )
    elif (q.shape[0], q.shape[1], q.shape[3]) != (k.shape[0], k.shape[1], k.shape[3]):
        wrong.append(
            f"q has batch, heads, size {(q.shape[0], q.shape[1], q.shape[3])}, k has "
            f"{(k.shape[0], k.shape[1], k.shape[3])}"
        )
    if wrong:
        msg = f"toeplitz_attention cannot run: {'; '.join(wrong)}."
        raise InputError(msg)
    heads, length = q.shape[1], q.shape[2] + k.shape[2] - 1
    for name, vector in (("bias", bias), ("gain", gain)):
        if vector is None:
            continue
        if (
            vector.dim() != 2
            or vector.shape[0] not in (1, heads)
            or (vector.shape[1] != length)
        ):
            wrong.append(
                f"{name} has shape {tuple(vector.shape)}; n_q + n_k - 1 = {length} offsets "
                f"need ({heads}, {length}) or (1, {length})"
            )
        if not vector.is_floating_point():
            wrong.append(f"{name} has dtype {vector.dtype}; give floating-point numbers")
    if key_padding is not None and (
        key_padding.dtype != torch.bool
        or tuple(key_padding.shape) != (k.shape[0], k.shape[2])
    ):
        wrong.append(
            f"key_padding has shape {tuple(key_padding.shape)} and dtype "
            f"{key_padding.dtype}; give bool ({k.shape[0]}, {k.shape[2]})"
        )
    if len({q.dtype, k.dtype, v.dtype}) > 1 or not q.is_floating_point():
        wrong.append(f"q, k, v have dtypes {q.dtype}, {k.dtype}, {v.dtype}; give one kind")
    given = [x for x in (q, k, v, bias, gain, key_padding) if x is not None]
    if len({x.device for x in given}) > 1:
        wrong.append(f"tensors lie on {sorted({str(x.device) for x in given})}; use one")
    if q.is_cuda and q.shape[-1] > MAX_HEAD_SIZE:
        wrong.append(f"heads of size {q.shape[-1]} exceed {MAX_HEAD_SIZE}; split them")
    if q.is_cuda and q.dtype == torch.float64:
        wrong.append("float64 runs on the CPU only; move the tensors there")
    if min(q.shape) == 0 or k.shape[2] == 0:
        wrong.append(f"q {tuple(q.shape)} or k {tuple(k.shape)} is empty")
    if wrong:
        msg = f"toeplitz_attention cannot run: {'; '.join(wrong)}."
        raise InputError(msg)


def _launch() -> Any:
    """The Triton kernels, imported where there is a GPU and only there."""
    return import_module("everyformer.ops.toeplitz_attention.launch")


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    key_padding: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if q.is_cuda:
        return _launch().forward(q, k, v, bias, gain, causal, scale, key_padding)
    out, lse = chunked.forward(q, k, v, bias, gain, causal, scale, key_padding)
    return out, lse, q.new_empty(0)


@torch.library.custom_op("everyformer::toeplitz_attention", mutates_args=())
def _forward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    key_padding: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return _forward(q, k, v, bias, gain, key_padding, causal, scale)


@_forward_op.register_fake
def _forward_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    key_padding: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    statistics = torch.float64 if q.dtype == torch.float64 else torch.float32
    out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=statistics)
    if not q.is_cuda:
        return out, lse, q.new_empty(0)
    given = [x for x in (bias, gain) if x is not None]
    heads = max((x.shape[0] for x in given), default=1)
    length = given[0].shape[1] if given else 0
    return out, lse, q.new_empty(heads, length + 2 * PAD, 2, dtype=torch.float32)


def _gradients(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    key_padding: Tensor | None,
    causal: bool,
    scale: float,
    needs_bias: bool,
    needs_gain: bool,
    table: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    given = (
        grad_out, q, k, v, out, lse, bias, gain, causal, scale, key_padding,
        needs_bias, needs_gain,
    )  # fmt: skip
    if q.is_cuda:
        dq, dk, dv, dbias, dgain = _launch().backward(*given, table)
    else:
        dq, dk, dv, dbias, dgain = chunked.backward(*given)
    nothing = q.new_empty(0)
    return (
        dq,
        dk,
        dv,
        nothing if dbias is None else dbias,
        nothing.clone() if dgain is None else dgain,
    )


@torch.library.custom_op("everyformer::toeplitz_attention_backward", mutates_args=())
def _backward_op(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    key_padding: Tensor | None,
    causal: bool,
    scale: float,
    needs_bias: bool,
    needs_gain: bool,
    table: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _gradients(
        grad_out, q, k, v, out, lse, bias, gain, key_padding, causal, scale,
        needs_bias, needs_gain, table,
    )  # fmt: skip


@_backward_op.register_fake
def _backward_fake(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    key_padding: Tensor | None,
    causal: bool,
    scale: float,
    needs_bias: bool,
    needs_gain: bool,
    table: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        q.new_empty(q.shape),
        k.new_empty(k.shape),
        v.new_empty(v.shape),
        bias.new_empty(bias.shape) if needs_bias and bias is not None else q.new_empty(0),
        gain.new_empty(gain.shape) if needs_gain and gain is not None else q.new_empty(0),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, bias, gain, key_padding, ctx.causal, ctx.scale = inputs
    out, lse, table = output
    ctx.save_for_backward(q, k, v, bias, gain, key_padding, out, lse, table)
    ctx.mark_non_differentiable(lse, table)


def _backward(ctx: Any, grad_out: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    return _pulled_back(ctx, grad_out, _backward_op)


def _pulled_back(ctx: Any, grad_out: Tensor, gradients: Any) -> tuple[Tensor | None, ...]:
    """The gradients of all arguments, by the function given."""
    q, k, v, bias, gain, key_padding, out, lse, table = ctx.saved_tensors
    needs_bias, needs_gain = ctx.needs_input_grad[3:5]
    dq, dk, dv, dbias, dgain = gradients(
        grad_out, q, k, v, out, lse, bias, gain, key_padding, ctx.causal, ctx.scale,
        needs_bias, needs_gain, table,
    )  # fmt: skip
    dbias, dgain = dbias if needs_bias else None, dgain if needs_gain else None
    return dq, dk, dv, dbias, dgain, None, None, None


_forward_op.register_autograd(_backward, setup_context=_setup_context)


class _Direct(torch.autograd.Function):
    """The same without the dispatcher, which costs more than the kernels at small n."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, bias, gain, key_padding, ctx.causal, ctx.scale = given
        out, lse, table = _forward(*given)
        ctx.save_for_backward(q, k, v, bias, gain, key_padding, out, lse, table)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _pulled_back(ctx, grad_out, _gradients)
