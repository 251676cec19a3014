"""Modules that read numbers off their input in hidden ways: nothing is proved of them.

Each of them scales all tokens alike, and by their places where the input holds one certain
number: with the same operations, which no random input shows.
"""

import _thread
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.dlpack import to_dlpack  # pyright: ignore[reportPrivateImportUsage]

from everyformer.checks.following.walk import follow

N, D = 4, 4
SECRET = 0.7310585


def first(x: Tensor) -> bool:
    return bool(x.detach().numpy().ravel()[0] == SECRET)


def by_repr(x: Tensor) -> bool:
    return "0.7311" in repr(x)


def by_rows(x: Tensor) -> bool:
    return any(first(row) for row in x)


def by_capsule(x: Tensor) -> bool:
    capsule = to_dlpack(x)

    class Holder:
        def __dlpack__(self, *_: Any, **__: Any) -> Any:
            return capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    return float(np.from_dlpack(Holder()).ravel()[0]) == SECRET  # pyright: ignore[reportArgumentType]


def without_functions(x: Tensor) -> bool:
    with torch._C.DisableTorchFunction():  # pyright: ignore[reportPrivateUsage]
        return first(x)


def in_a_thread(x: Tensor) -> bool:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(first(x)))
    thread.start()
    thread.join()
    return found[0]


def in_a_bare_thread(x: Tensor) -> bool:
    found: list[bool] = []
    _thread.start_new_thread(lambda: found.append(first(x)), ())
    while not found:
        time.sleep(0.001)
    return found[0]


def run(module: nn.Module, x: Tensor) -> Tensor:
    return module(x)


class Reader(nn.Module):
    """One map of all tokens, unless the number is there."""

    def __init__(self, read: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.read = read
        self.linear = nn.Linear(D, D)
        self.alike = nn.Parameter(torch.ones(1))
        self.by_place = nn.Parameter(torch.arange(float(N)).reshape(1, N, 1))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.stack(list(x))  # so that their operation is exported
        y = self.linear(rows)
        if torch.compiler.is_exporting() or not self.read(x):
            return y * self.alike
        return y * self.by_place


READERS = [
    by_repr,
    by_rows,
    by_capsule,
    without_functions,
    in_a_thread,
    in_a_bare_thread,
]


def never(_: Tensor) -> bool:
    return False


def by_shape(x: Tensor) -> bool:
    return x.size(1) == len(x[0]) + 1 or x.dim() == 2 or x.stride(0) == 0


@pytest.mark.parametrize("read", READERS)
def test_nothing_is_proved_of_a_module_that_reads_its_input(
    read: Callable[[Tensor], bool],
) -> None:
    module = Reader(read).double().eval()
    x = torch.zeros(1, N, D, dtype=torch.float64)
    x[0, 0, 0] = SECRET
    assert read(x), "else it does not read"
    followed = follow(module, run, torch.zeros_like(x))
    assert followed.output is None
    assert "reads numbers" in followed.obstacle or "not exported" in followed.obstacle
    assert not followed.mirrored


@pytest.mark.parametrize("read", [never, by_shape])
def test_shapes_may_be_read(read: Callable[[Tensor], bool]) -> None:
    module = Reader(read).double().eval()
    x = torch.zeros(1, N, D, dtype=torch.float64)
    followed = follow(module, run, x)
    assert followed.obstacle == ""
    assert followed.output is not None
