"""The operator: checks, and the way of each call.

On a CUDA device the Triton kernels run, elsewhere the chunked path: directly, by
`torch.func` (`derivatives`), or as a custom op, so that `torch.compile` and fake tensors
know it (`library`). Forward-mode derivatives are those of the reference.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from everyformer.errors import InputError
from everyformer.ops.eager import (
    autocasted,
    is_forward_mode,
    is_plain,
    is_transformed,
)
from everyformer.ops.toeplitz_attention.derivatives import Direct, Transformed
from everyformer.ops.toeplitz_attention.library import forward_op
from everyformer.ops.toeplitz_attention.operands import Operands
from everyformer.ops.toeplitz_attention.reference import toeplitz_attention_reference

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
    bias depends on i - j. Gradients go to q, k, v, bias and gain; second derivatives, and
    those of forward mode, take O(n^2) memory.

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
    given = Operands(q, k, v, bias, gain, key_padding, causal, factor)
    if is_forward_mode():
        return toeplitz_attention_reference(
            q, k, v, bias, gain, causal=causal, scale=factor, key_padding=key_padding
        )
    found: Any
    if not is_plain(q, k, v):
        found, *_ = forward_op(*given)
    elif is_transformed():
        found, *_ = Transformed.apply(*given)
    else:
        found = Direct.apply(*given)
    return found


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
