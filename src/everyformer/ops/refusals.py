"""What operators of attention refuse in the same words: reasons, none where all is well."""

import torch
from torch import Tensor

MAX_PAIRS = 65535
"""Of sequence and head: the second axis of a grid of programs."""


def of_padding(padding: Tensor | None, wanted: tuple[int, ...]) -> list[str]:
    """A `key_padding` that is not one bool for each of these sequences and keys."""
    if padding is None or (padding.dtype == torch.bool and tuple(padding.shape) == wanted):
        return []
    return [
        f"key_padding has shape {tuple(padding.shape)} and dtype {padding.dtype}; "
        f"give bool {wanted}"
    ]


def of_kinds(q: Tensor, k: Tensor, v: Tensor) -> list[str]:
    """Queries, keys and values that are not floating-point numbers of one kind."""
    if len({q.dtype, k.dtype, v.dtype}) == 1 and q.is_floating_point():
        return []
    return [f"q, k, v have dtypes {q.dtype}, {k.dtype}, {v.dtype}; give one kind"]


def of_pairs(q: Tensor) -> list[str]:
    """More pairs of a sequence and a head than one launch on a GPU takes."""
    if not q.is_cuda or q.shape[0] * q.shape[1] <= MAX_PAIRS:
        return []
    return [
        f"{q.shape[0]} sequences of {q.shape[1]} heads exceed {MAX_PAIRS} pairs, all "
        "that one launch takes; split the batch"
    ]


def of_devices(*given: Tensor | None) -> list[str]:
    """Tensors on several devices."""
    devices = {x.device for x in given if x is not None}
    told = sorted(str(device) for device in devices)
    return [f"tensors lie on {told}; use one"] if len(devices) > 1 else []


def of_dropout(dropout: float) -> list[str]:
    """A `dropout` that is not a probability."""
    if 0.0 <= dropout <= 1.0:
        return []
    return [f"dropout is {dropout}; give a probability from 0 to 1"]


def of_seed(seed: Tensor | None) -> list[str]:
    """A `seed` that is not one int64."""
    if seed is None or (seed.dtype == torch.int64 and seed.numel() == 1):
        return []
    return [f"seed has shape {tuple(seed.shape)} and dtype {seed.dtype}; give int64 (1,)"]
