"""How a module is fed tokens, and where its output is."""

import inspect
from typing import Any, Literal

import torch
from torch import nn

from everyformer.errors import InputError

Layout = Literal["batch_first", "tokens_first"]
"""Whether a module takes (batch, n, d) or (n, batch, d)."""


def call(
    module: nn.Module, x: torch.Tensor, layout: Layout = "batch_first"
) -> torch.Tensor:
    """Feed tokens to a module the way its forward asks for, and take its first tensor.

    Understood: forward(x, ..), forward(query, key, value), and models with inputs_embeds.

    Args:
        module: The module.
        x: Tokens, (batch, n, d).
        layout: How the module wants them, and gives its own.

    Returns:
        Its output, turned to (batch, n, d).

    Raises:
        InputError: If the result holds no tensor.
    """
    names = list(inspect.signature(module.forward).parameters)
    turned = x.transpose(0, 1) if layout == "tokens_first" else x
    try:
        if names[:3] == ["query", "key", "value"]:
            found = module(turned, turned, turned)
        elif "inputs_embeds" in names and names[0] in ("input_ids", "inputs_embeds"):
            found = module(inputs_embeds=turned)
        else:
            found = module(turned)
    except SystemExit as error:
        msg = f"the forward of {type(module).__name__} ends the program"
        raise InputError(f"{msg}. Take that out.") from error
    found = _first(getattr(found, "last_hidden_state", found))
    if not isinstance(found, torch.Tensor):
        msg = f"the forward of {type(module).__name__} returned {type(found).__name__}"
        raise InputError(f"{msg}, not a tensor (or a tuple that begins with one).")
    if layout == "tokens_first" and found.ndim >= 2:
        found = found.transpose(0, 1)
    return found.double()


def _first(found: Any) -> Any:
    return found[0] if isinstance(found, (tuple, list)) and found else found
