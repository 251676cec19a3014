"""What every layer asks of its input: tokens as rows, and a padding mask that fits."""

import torch
from torch import Tensor

from everyformer.errors import InputError, refuse


def check_tokens(
    layer: object,
    x: Tensor,
    width: int,
    mask: Tensor | None,
    least: int = 0,
    name: str = "x",
) -> None:
    """Refuse an input that a layer cannot take; all reasons at once.

    Args:
        layer: Whose name the error says.
        x: Should be (*batch, n, width) numbers.
        width: d.
        mask: Should be one bool for each token.
        least: Tokens that there must be.
        name: What x is called.

    Raises:
        InputError: If shape, dtype or device of x or of the mask do not fit.
    """
    wrong = [
        f"{what} is of type {type(given).__name__}; give a tensor"
        for what, given in ((name, x), ("key_padding_mask", mask))
        if given is not None and not isinstance(given, Tensor)
    ]
    refuse(f"{type(layer).__name__} cannot run", wrong)
    short = x.dim() >= 2 and x.shape[-2] < least
    if x.dim() < 2 or x.shape[-1] != width or short:
        tokens = f" and at least {least}" if least else ""
        wrong.append(
            f"{name} has shape {tuple(x.shape)}; the layer needs (*batch, n, {width}), "
            f"tokens as rows{tokens}"
        )
    if not x.is_floating_point():
        wrong.append(f"{name} has dtype {x.dtype}; give floating-point numbers")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:-1]):
        wrong.append(
            f"key_padding_mask has shape {tuple(mask.shape)} and dtype {mask.dtype}; give "
            f"one bool per token, {tuple(x.shape[:-1])}"
        )
    elif mask is not None and mask.device != x.device:
        wrong.append(
            f"key_padding_mask lies on {mask.device}, {name} on {x.device}; use one device"
        )
    refuse(f"{type(layer).__name__} cannot run", wrong)


def check_device(layer: object, weight: Tensor, x: Tensor, name: str = "x") -> None:
    """Refuse tokens that lie elsewhere than the weights of a layer.

    Raises:
        InputError: With both devices.
    """
    if x.device != weight.device:
        msg = (
            f"{type(layer).__name__} cannot run: {name} lies on {x.device}, its weights on "
            f"{weight.device}. Move one of them: {name}.to({str(weight.device)!r})."
        )
        raise InputError(msg)
