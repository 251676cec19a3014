"""Floating-point operations of a model, and the rate of matrix products of a device."""

import statistics
import time

import torch
from torch import nn

from everyformer.errors import TrainingError
from everyformer.layers.attention import RelativeAttention
from everyformer.layers.encodings import Encoding
from everyformer.layers.gains import Gain
from everyformer.layers.mixers import (
    AverageAttention,
    BilinearProjection,
    DynamicConvolution,
    LightConvolution,
    SeparableConvolution,
)
from everyformer.layers.mixers.mixer import Mixer
from everyformer.layers.models.encoder import Encoder

BACKWARD = 2
"""A product has two gradients, each a product of the same size."""

UNCOUNTED = (nn.Embedding, nn.LayerNorm, Encoder, Encoding, Gain)
"""Parts with parameters and without matrix products, but for those of an encoding."""


OF_ONE_TOKEN = ("pooler", "next", "classes")
"""Layers on the first token of a sequence alone."""


def forward_flops(model: nn.Module, n: int, head_tokens: int | None = None) -> int:
    """Operations of the matrix products of one sequence of n tokens.

        Linear: 2 n d_in d_out        attention: 2 n d 3d + 4 n^2 d
        bi-linear: 2 n^2 d            convolutions: 2 n d K, whoever makes the filters

    Sums, norms, gates and the terms of encodings are not counted. Average attention has
    one projection of one row.

    Args:
        model: An encoder, a block, or a module around them.
        n: Number of tokens.
        head_tokens: How many tokens pass the head; all by default.

    Raises:
        TrainingError: If the model has a part whose products are not known.
    """
    total = 0
    parts = dict(model.named_modules())
    means = [f"{n}." for n, part in parts.items() if isinstance(part, AverageAttention)]
    for name, part in parts.items():
        tokens = n if head_tokens is None or "head." not in f"{name}." else head_tokens
        tokens = (
            1 if name.endswith(OF_ONE_TOKEN) or name.startswith(tuple(means)) else tokens
        )
        if isinstance(part, nn.Linear):
            total += 2 * tokens * part.in_features * part.out_features
        elif isinstance(part, RelativeAttention):
            total += 6 * n * part.embed_dim**2 + 4 * n**2 * part.embed_dim
        elif isinstance(part, Mixer):
            total += 2 * n * part.dim * _heard(part, n)
        elif _has_weights(part) and not isinstance(part, UNCOUNTED):
            msg = (
                f"The products of {type(part).__name__} ({name}) are not known, so its "
                "operations cannot be counted. Count an encoder of the library's mixers."
            )
            raise TrainingError(msg)
    return total


def training_flops(model: nn.Module, n: int, head_tokens: int | None = None) -> int:
    """Operations of one sequence, forward and backward."""
    return (1 + BACKWARD) * forward_flops(model, n, head_tokens)


def matrix_rate(
    device: torch.device, dtype: torch.dtype, size: int | None = None, repeats: int = 10
) -> float:
    """Operations per second of a large square product on random data; the median.

    Args:
        device: Where.
        dtype: Of the factors.
        size: Rows and columns; 8,192 on a GPU, 256 elsewhere.
        repeats: How many products are timed, after three that are not.
    """
    size = size or (8192 if device.type == "cuda" else 256)
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    times: list[float] = []
    for turn in range(repeats + 3):
        wait_for(device)
        started = time.perf_counter()
        torch.matmul(a, b)
        wait_for(device)
        if turn >= 3:
            times.append(time.perf_counter() - started)
    return 2 * size**3 / statistics.median(times)


def _heard(part: Mixer, n: int) -> int:
    """Tokens that a mixer multiplies for each output; sums of a mean are not products."""
    if isinstance(part, BilinearProjection):
        return n
    if isinstance(part, SeparableConvolution | LightConvolution):
        return part.filters.shape[1]
    return part.filter_length if isinstance(part, DynamicConvolution) else 0


def _has_weights(part: nn.Module) -> bool:
    return next(part.parameters(recurse=False), None) is not None


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has done all that it was given; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
