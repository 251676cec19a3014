"""A module with other weights, which come to it in one of several ways."""

import copy

import torch
from torch import nn

LARGE = 2**20
"""Numbers of a weight from which on they are drawn in float32, in a fifth of the time, and
are copied when somebody writes."""


def unused(module: nn.Module) -> nn.Module:
    """A copy of a module that was never run, with large weights that are copied on write.

    Until then they lie in one memory. PyTorch copies them before anything is written there,
    or numpy is given the memory, so that no run of the copy changes the module. No other
    tensor of the module may lie in the memory of its weights (`refuse_aliases`).

    Example:
        >>> module = nn.Linear(1024, 1024)
        >>> before, own = module.weight.sum(), unused(module)
        >>> _ = own.weight.data.zero_()
        >>> bool(own.weight.sum() == 0), bool(module.weight.sum() == before)
        (True, True)
    """
    memo: dict[int, object] = {}
    for weight in module.parameters():
        plain = type(weight) is nn.Parameter and not vars(weight)
        plain = plain and weight.layout == torch.strided and weight.device.type == "cpu"
        if plain and weight.numel() >= LARGE:
            lazy = torch.ops.aten._lazy_clone(weight.detach())
            memo[id(weight)] = nn.Parameter(lazy, weight.requires_grad)
    return copy.deepcopy(module, memo)


def redrawn(module: nn.Module, seed: int) -> nn.Module:
    """A copy with all parameters that require gradients drawn from a seed.

    Frozen parameters and buffers are part of the module, not of its weights. Weights change
    in training, so a module that makes something of them in `eval` does it afterwards.
    """
    own = copy.deepcopy(module).train()
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in own.parameters():
            fan = max(1, weight.shape[-1]) if weight.ndim > 1 else 1
            kind = torch.float32 if weight.numel() >= LARGE else torch.float64
            drawn = torch.empty(weight.shape, dtype=kind)
            in_place = weight.requires_grad and weight.dtype == drawn.dtype
            in_place = in_place and weight.device == drawn.device
            drawn = weight if in_place else drawn
            drawn.normal_(std=fan**-0.5, generator=source)
            if weight.requires_grad and not in_place:
                weight.copy_(drawn)
    return own.eval()


def given_weights(
    module: nn.Module, seed: int, written: nn.Module | None = None
) -> list[nn.Module]:
    """Copies with the same weights, drawn from a seed, that came in different ways.

    Written in place, as an optimiser does; and loaded, moved and copied, as people do with
    what an optimiser found. A module may make something of its weights in one of them.

    Args:
        module: The module.
        seed: What the weights are drawn from.
        written: What `redrawn` gave for that seed, if it was not run yet.
    """
    written = redrawn(module, seed) if written is None else written
    loaded = copy.deepcopy(module).train()
    loaded.load_state_dict(written.state_dict())
    return [written, copy.deepcopy(loaded.to(torch.float64)).eval()]
