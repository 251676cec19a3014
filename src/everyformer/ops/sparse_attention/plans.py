"""What is prepared for a pattern before it runs: its pieces, and walks on every device."""

import itertools
import weakref
from importlib import import_module
from typing import Any

import torch

from everyformer.ops.sparse_attention.routes import pieces_of
from everyformer.patterns import Part

_numbers = itertools.count()


class Plan:
    """The pieces of a part, and what kernels need to walk them.

    Attributes:
        n: Number of tokens.
        pieces: Disjoint pieces that make up the part.
        handle: The number by which `torch.compile` knows this plan.
    """

    def __init__(self, part: Part) -> None:
        """Of a part, which is not kept."""
        self.n = part.n
        self.pieces = pieces_of(part)
        self.handle = next(_numbers)
        self._walks: dict[torch.device, Any] = {}
        _BY_HANDLE[self.handle] = self

    def walks(self, device: torch.device) -> Any:
        """The walks on a device with Triton."""
        if device not in self._walks:
            launch = import_module("everyformer.ops.sparse_attention.launch")
            self._walks[device] = launch.Walks(self.pieces, self.n, device)
        return self._walks[device]


_BY_HANDLE: "weakref.WeakValueDictionary[int, Plan]" = weakref.WeakValueDictionary()
_BY_PART: dict[int, Plan] = {}


def plan_of(part: Part) -> Plan:
    """The plan of a part, made once for every object and dropped with it."""
    number = id(part)  # not by content: hashing a long list takes longer than running it
    if number not in _BY_PART:
        _BY_PART[number] = Plan(part)
        weakref.finalize(part, _BY_PART.pop, number, None)
    return _BY_PART[number]


def plan_with(handle: int) -> Plan:
    """The plan with a handle, which somebody must still hold."""
    return _BY_HANDLE[handle]
