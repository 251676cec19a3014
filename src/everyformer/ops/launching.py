"""Launch Triton kernels, many of which run shorter than Triton looks for their binary."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 16
"""Bytes; a binary may rely on it."""

MOST_PREPARED = 1024
"""Launches that are remembered; then all are forgotten, and prepared anew."""


LARGEST_TILE = 128
"""Of the queries or keys of attention: lengths that it divides need no bounds."""


@dataclass(frozen=True)
class Tiles:
    """Tile sizes of one kernel of attention: queries, keys, warps and pipeline stages.

    `registers` is the most that a thread may have. To name even the highest number there
    is, 255, changes the order of a kernel: without it the assembler saves registers where
    it can, and moves reads from before the products, which they would take no time beside,
    to right before their use.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None

    @property
    def options(self) -> dict[str, int]:
        """As the kernels of attention, and Triton, take them."""
        found = {
            "BM": self.queries, "BN": self.keys,
            "num_warps": self.warps, "num_stages": self.stages,
        }  # fmt: skip
        return found if self.registers is None else found | {"maxnreg": self.registers}


FARTHEST = 2**31
"""Numbers between the first and the last token of a head, from which on they are copied."""


class Prepared:
    """A launch of which all but the tensors is fixed: kernel, grid, numbers, options.

    A binary depends on these, on the dtypes of the tensors and on their alignment, so it is
    the same in all calls with aligned tensors of the same dtypes: Triton is asked once.

    Args:
        kernel: A function by `triton.jit`: tensors first, numbers, then constants.
        grid: Numbers of programs.
        numbers: Integers and floats.
        options: The constants, and options of Triton.
    """

    __slots__ = ("_constants", "_grid", "_kernel", "_numbers", "_options", "_run")

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], *numbers: float, **options: Any
    ) -> None:
        self._kernel, self._numbers, self._options = kernel, numbers, options
        self._grid = (*grid, 1, 1)[:3]
        names = [name for name in kernel.arg_names if name in options]
        self._constants = tuple(options[name] for name in names)
        self._run: Any = None

    def __call__(self, *tensors: Tensor) -> None:
        """Launch on the current device.

        The binary takes addresses: of a tensor Triton would ask the driver for its own.
        """
        addresses = [x.data_ptr() for x in tensors]
        aligned = not any([address % ALIGNMENT for address in addresses])  # noqa: C419 (speed)
        if self._run is not None and aligned:
            self._run(*addresses, *self._numbers, *self._constants)
            return
        binary = self._kernel[self._grid](*tensors, *self._numbers, **self._options)
        if aligned and binary is not None:  # it is None in the interpreter
            self._run = binary[self._grid]


_PREPARED: dict[tuple[Any, ...], Prepared] = {}


def launch(kernel: Any, grid: tuple[int, ...], *given: Any, **options: Any) -> None:
    """What kernel[grid](*given, **options) does, prepared when it is first seen.

    Args:
        kernel: A function by `triton.jit`.
        grid: Numbers of programs.
        given: Tensors, then numbers.
        options: The constants, and options of Triton.
    """
    tensors = [x for x in given if isinstance(x, Tensor)]
    numbers = given[len(tensors) :]
    device = tensors[0].device
    kinds = [x.dtype for x in tensors]
    key = (id(kernel), device, grid, numbers, *kinds, *options.values())
    if key not in _PREPARED:
        if len(_PREPARED) >= MOST_PREPARED:
            _PREPARED.clear()
        _PREPARED[key] = Prepared(kernel, grid, *numbers, **options)
    with on(device):
        _PREPARED[key](*tensors)


def side_by_side(x: Tensor) -> Tensor:
    """The same numbers, those of the last axis side by side in memory."""
    return x if x.stride(-1) == 1 else x.contiguous()


def addressable(x: Tensor) -> Tensor:
    """Heads and tokens for kernels that count within a head in 32 bits: side by side, near.

    A tile may begin among the last tokens and reach beyond them.
    """
    far = (x.shape[2] + 2 * LARGEST_TILE) * x.stride(2) >= FARTHEST
    return x.contiguous() if far else side_by_side(x)


def empty_like(x: Tensor) -> Tensor:
    """Contiguous memory for as many numbers."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def ceil_div(count: int, tile: int) -> int:
    """How many tiles cover a number of entries."""
    return -(-count // tile)


def power_of_two(count: int) -> int:
    """The least power of two that is not below a number >= 1."""
    return 1 << (count - 1).bit_length()


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Makes a GPU the current one, as a launch needs it."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)
