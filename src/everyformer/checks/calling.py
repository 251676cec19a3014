"""How a module is fed tokens, and where its output is."""

import inspect
from typing import Any

import torch
from torch import nn

from everyformer.errors import InputError


def call(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Feed tokens to a module the way its forward asks for, and take its first tensor.

    Understood: forward(x, ..), forward(query, key, value), and models with inputs_embeds.

    Raises:
        InputError: If the result holds no tensor.
    """
    names = list(inspect.signature(module.forward).parameters)
    try:
        if names[:3] == ["query", "key", "value"]:
            found = _attend(module, x)
        elif "inputs_embeds" in names and names[0] in ("input_ids", "inputs_embeds"):
            found = module(inputs_embeds=x)
        else:
            found = module(x)
    except SystemExit as error:
        msg = f"the forward of {type(module).__name__} ends the program"
        raise InputError(f"{msg}. Take that out.") from error
    found = _first(getattr(found, "last_hidden_state", found))
    if not isinstance(found, torch.Tensor):
        msg = f"the forward of {type(module).__name__} returned {type(found).__name__}"
        raise InputError(f"{msg}, not a tensor (or a tuple that begins with one).")
    return found.double()


def _attend(module: nn.Module, x: torch.Tensor) -> Any:
    """Self-attention by forward(query, key, value)."""
    if getattr(module, "batch_first", True):
        return module(x, x, x)
    turned = x.transpose(0, 1)
    return _first(module(turned, turned, turned)).transpose(0, 1)


def _first(found: Any) -> Any:
    return found[0] if isinstance(found, (tuple, list)) and found else found
