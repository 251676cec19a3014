"""What is prepared for a pattern before it runs: its pieces, and walks on every device."""

import weakref
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from everyformer.errors import InputError
from everyformer.ops.sparse_attention.pieces import Masked, Piece
from everyformer.ops.sparse_attention.routes import pieces_of
from everyformer.ops.sparse_attention.steps import Steps
from everyformer.patterns import Part

SHORT = 256
"""Tokens up to which plain torch is fastest with a mask of all pairs."""


class PreparedPart:
    """The pieces of a part, and what is needed to walk them.

    Attributes:
        n: Number of tokens.
        pieces: Disjoint pieces that make up the part.
        groups: The same as plain torch walks them.
        steps: And as it runs them.
        handle: The number by which `torch.compile` knows this plan: that of its content,
            so that no other process takes it for that of another pattern.
    """

    def __init__(self, part: Part, pieces: tuple[Piece, ...], handle: int) -> None:
        """Of a part, which is not kept, and its pieces."""
        self.n, self.pieces, self.handle = part.n, pieces, handle
        self.groups = (Masked(part.rows()),) if part.n <= SHORT else pieces
        self.steps = Steps(self.groups, part.n)
        self._walks: dict[torch.device, Any] = {}
        _BY_HANDLE[self.handle] = self

    def walks(self, device: torch.device) -> Any:
        """The walks on a device with Triton."""
        if device not in self._walks:
            from everyformer.ops.sparse_attention import launch

            self._walks[device] = launch.Walks(self.pieces, self.n, device)
        return self._walks[device]


_BY_HANDLE: "weakref.WeakValueDictionary[int, PreparedPart]" = weakref.WeakValueDictionary()
_BY_PART: dict[int, PreparedPart] = {}


def plan_of(part: Part) -> PreparedPart:
    """The plan of a part, made once for every object and dropped with the last of them."""
    number = id(part)  # not by content: hashing a long list takes longer than running it
    if number not in _BY_PART:
        pieces = pieces_of(part)
        handle = _number_of(part.n, pieces)
        _BY_PART[number] = _BY_HANDLE.get(handle) or PreparedPart(part, pieces, handle)
        weakref.finalize(part, _BY_PART.pop, number, None)
    return _BY_PART[number]


def plan_with(handle: int) -> PreparedPart:
    """The plan with a handle, which somebody must still hold.

    Raises:
        InputError: If it is not known, as in a process that has read an exported graph.
    """
    plan = _BY_HANDLE.get(handle)
    if plan is None:
        msg = (
            f"sparse_attention was recorded with pattern {handle}, which this process does "
            "not know. Call sparse_attention once with the same pattern and keep it, or "
            "export the layer SparseAttention instead, whose graph needs no pattern."
        )
        raise InputError(msg)
    return plan


def _number_of(n: int, pieces: tuple[Piece, ...]) -> int:
    """63 bits of a hash of the content."""
    found = blake2b(digest_size=8)
    _add(found, (n, pieces))
    return int.from_bytes(found.digest(), "big") >> 1


def _add(found: Any, content: Any) -> None:
    if isinstance(content, np.ndarray):
        found.update(f"{content.dtype}{content.shape}".encode())
        found.update(np.ascontiguousarray(content).data)
    elif is_dataclass(content):
        found.update(type(content).__name__.encode())
        _add(found, tuple(getattr(content, field.name) for field in fields(content)))
    elif isinstance(content, tuple):
        found.update(f"({len(content)}".encode())
        for one in content:
            _add(found, one)
    else:
        found.update(f"{content!r},".encode())
