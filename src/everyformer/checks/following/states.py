"""The state that torch is in: a module that goes by it is another one in another state.

A run of a check makes tensors of float32, and knows no inference mode. The weights of its
copies require gradients as those of the module did, and have none. A module must compute
the same where all this is different, but for rounding. Autocast is not tried: it rounds
what honest modules compute in float32; who asks for it is seen (`outside`).
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
from torch import nn

ROUNDING = 0.05
"""Of the largest output: constants that are made of float32 have other digits."""


@contextmanager
def _of_float64() -> Generator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


STATES = {
    "torch's default dtype": _of_float64,
    "inference mode": torch.inference_mode,
}


def goes_by_a_state(module: nn.Module, x: torch.Tensor) -> str:
    """The state by which a module goes; "" if it goes by none that is tried.

    Args:
        module: The module, in float64.
        x: An input.
    """
    with torch.no_grad():
        wanted = module(x.clone())
        for name, state in STATES.items():
            try:
                with state():
                    found = module(x.clone()).clone()
            except Exception:  # where it does not run it is not another module
                continue
            if not _is_near(found.to(wanted.dtype), wanted):
                return f"it goes by {name}, and is judged in one state of it alone"
        found = _with_other_weights(module, lambda: module(x.clone()))
        if not _is_near(found, wanted):
            return "it goes by which of its weights require gradients, or have any"
    return ""


def _with_other_weights(module: nn.Module, run: Callable[[], torch.Tensor]) -> torch.Tensor:
    """A run in which frozen weights are free, free ones frozen, and all have gradients."""
    weights = [one for one in module.parameters() if one.is_floating_point()]
    before = [(one.requires_grad, one.grad) for one in weights]
    try:
        for one in weights:
            one.requires_grad_(not one.requires_grad)
            one.grad = one.new_zeros(()).expand(one.shape)
        return run()
    finally:
        for one, (free, slope) in zip(weights, before, strict=True):
            one.requires_grad_(free)
            one.grad = slope


def _is_near(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    if found.shape != wanted.shape:
        return False
    size = float(wanted.nan_to_num().abs().max().clamp(min=1e-9))
    return torch.allclose(found, wanted, rtol=0, atol=ROUNDING * size, equal_nan=True)
