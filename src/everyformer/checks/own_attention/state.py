"""What a module may change between the time it is followed and the time it is run.

A proof is about numbers: parameters, buffers, and the mode of every part. They are noted
when layers are followed, and looked at again before anything is claimed.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.targets.box import Box

PROBES = 8
"""Sequences that a module is run on, to see whether it does what it did."""


def state_of(module: nn.Module) -> str:
    """A hash of all parameters and buffers, also those that no file holds, and the mode."""
    found = hashlib.sha256()
    for name, part in module.named_modules(remove_duplicate=False):
        found.update(repr((name, type(part).__qualname__, part.training)).encode())
    tensors = (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    )
    for name, held in tensors:
        found.update(repr((name, held.dtype, tuple(held.shape))).encode())
        flat = held.detach().cpu().contiguous().reshape(-1)
        found.update(flat.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def as_they_will_run(layers: Sequence[object]) -> str:
    """Put all layers into the mode in which they will be run; their state then.

    All at once and before any of them is followed: a witness may hand out one layer twice,
    with other weights, and what counts is what it holds in the end.
    """
    modules = [layer for layer in layers if isinstance(layer, nn.Module)]
    for layer in modules:
        layer.eval()
    return state_of(nn.ModuleList(modules))


@dataclass(frozen=True)
class Kept:
    """A module as it was.

    Attributes:
        state: Its parameters, buffers and modes.
        x: Some tokens.
        y: What it made of them.
    """

    state: str
    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, module: nn.Module, n: int, box: Box) -> "Kept":
        """As it is now, after a run on sequences of n tokens in a box."""
        generator = torch.Generator().manual_seed(0)
        low, high = (torch.tensor(ends).double() for ends in (box.lows, box.highs))
        cube = torch.rand(PROBES, n, len(low), generator=generator, dtype=torch.float64)
        x = low + (high - low) * cube
        with torch.no_grad():
            y = module(x.clone())
        return cls(state_of(module), x, y)

    def check(self, module: nn.Module) -> None:
        """See that it is the same still.

        Raises:
            InputError: If a parameter, a buffer, a mode or an output is another.
        """
        why = "its parameters, buffers or mode"
        same = state_of(module) == self.state
        if same:
            why = "its outputs"
            with torch.no_grad():
                same = torch.allclose(module(self.x.clone()), self.y, rtol=0, atol=1e-9)
            same = same and state_of(module) == self.state
        if not same:
            msg = (
                f"The module is not what it was when its layers were followed: {why} have "
                "changed. What was proved is not about it: call with_own_attention again, "
                "and do not train it or change its mode afterwards."
            )
            raise InputError(msg)
