"""What the operator refuses: all reasons at once, each with what was given."""

import torch

from everyformer.errors import refuse
from everyformer.ops import refusals
from everyformer.ops.captured import is_on_gpu
from everyformer.ops.eager import is_plain, is_transformed
from everyformer.ops.toeplitz_attention.operands import TENSORS, Operands

MAX_HEAD_SIZE = 256
"""Of the Triton kernels."""


def check(x: Operands) -> None:
    """Raise `InputError` if shapes, dtypes, devices or numbers do not fit."""
    wrong = _of_shapes(x)
    if not wrong:
        wrong = [
            *_of_vectors(x),
            *refusals.of_padding(x.key_padding, (x.k.shape[0], x.k.shape[2])),
            *_of_mask(x),
            *_of_sequences(x),
            *refusals.of_dropout(x.dropout),
            *refusals.of_seed(x.seed),
            *_of_places(x),
        ]
    refuse("toeplitz_attention cannot run", wrong)


def _of_shapes(x: Operands) -> list[str]:
    q, k, v = x.q, x.k, x.v
    if q.dim() != 4 or k.dim() != 4 or v.shape != k.shape:
        return [
            f"q, k, v have shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}; "
            "they must be (b, h, n_q, d), (b, h_k, n_k, d), (b, h_k, n_k, d)"
        ]
    if min(q.shape) == 0 or min(k.shape) == 0:
        return [f"q {tuple(q.shape)} or k {tuple(k.shape)} is empty"]
    if (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]):
        return [
            f"q has batch, heads, size {(q.shape[0], q.shape[1], q.shape[3])}, k has "
            f"{(k.shape[0], k.shape[1], k.shape[3])}; batch and size must be the same"
        ]
    if q.shape[1] % k.shape[1] != 0:
        return [
            f"q has {q.shape[1]} heads, k has {k.shape[1]}; heads of keys must divide "
            "those of queries, so that each serves a whole group"
        ]
    return []


def _of_vectors(x: Operands) -> list[str]:
    wrong: list[str] = []
    heads, length = x.q.shape[1], x.q.shape[2] + x.k.shape[2] - 1
    for name, vector in (("bias", x.bias), ("gain", x.gain)):
        if vector is None:
            continue
        if (
            vector.dim() != 2
            or vector.shape[0] not in (1, heads)
            or vector.shape[1] != length
        ):
            wrong.append(
                f"{name} has shape {tuple(vector.shape)}; n_q + n_k - 1 = {length} offsets "
                f"need ({heads}, {length}) or (1, {length})"
            )
        if not vector.is_floating_point():
            wrong.append(f"{name} has dtype {vector.dtype}; give floating-point numbers")
    return wrong


def _of_mask(x: Operands) -> list[str]:
    mask = x.attn_mask
    if mask is None:
        return []
    wrong: list[str] = []
    wanted = (*x.q.shape[:3], x.k.shape[2])
    sizes = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    if len(sizes) > 4 or any(a not in (1, b) for a, b in zip(sizes, wanted, strict=True)):
        wrong.append(
            f"attn_mask has shape {tuple(mask.shape)}; give one that is broadcast to "
            f"(b, h, n_q, n_k) = {wanted}"
        )
    if mask.dtype != torch.bool and not mask.is_floating_point():
        wrong.append(
            f"attn_mask has dtype {mask.dtype}; give bool (True for pairs that count) or "
            "floating-point numbers to add to the scores"
        )
    if mask.requires_grad and torch.is_grad_enabled():
        wrong.append(
            "attn_mask requires a gradient, which it does not get: give it as bias, or use "
            "everyformer.ops.pairwise_attention; a mask that is not learned: detach it"
        )
    return wrong


def _of_sequences(x: Operands) -> list[str]:
    found, n = x.sequences, x.q.shape[2]
    if found is None:
        return []
    wrong: list[str] = []
    whole = found.dtype in (torch.int32, torch.int64)
    if found.dim() != 1 or found.shape[0] < 2 or not whole:
        wrong.append(
            f"sequences has shape {tuple(found.shape)} and dtype {found.dtype}; give int32 "
            "(s + 1,): where each of s sequences begins, and where the last one ends"
        )
    elif not is_on_gpu(found) and is_plain(found) and not is_transformed():
        values = found.tolist()
        if values[0] != 0 or values[-1] != n or values != sorted(values):
            wrong.append(
                f"sequences goes from {values[0]} to {values[-1]}"
                f"{'' if values == sorted(values) else ' and not always upwards'}; it must "
                f"grow from 0 to n = {n}, so that each token has its sequence"
            )
    if x.q.shape[0] != 1 or x.k.shape[2] != n or x.offset != 0:
        wrong.append(
            f"sequences are packed in one row of tokens that are queries and keys, but "
            f"b = {x.q.shape[0]}, n_q = {n}, n_k = {x.k.shape[2]}, offset = {x.offset}; "
            "use b = 1, n_q = n_k, offset = 0"
        )
    return wrong


def _of_places(x: Operands) -> list[str]:
    """Dtypes, devices, and what only the CPU can do."""
    q = x.q
    wrong: list[str] = []
    if isinstance(x.offset, bool) or not isinstance(x.offset, int | torch.SymInt):
        wrong.append(f"offset is {x.offset!r}; give a whole number of tokens")
    wrong += refusals.of_kinds(q, x.k, x.v)
    wrong += refusals.of_devices(*x[:TENSORS])
    if q.is_cuda and q.shape[-1] > MAX_HEAD_SIZE:
        wrong.append(f"heads of size {q.shape[-1]} exceed {MAX_HEAD_SIZE}; split them")
    wrong += refusals.of_pairs(q)
    if q.is_cuda and q.dtype == torch.float64:
        wrong.append("float64 runs on the CPU only; move the tensors there")
    return wrong
