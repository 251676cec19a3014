"""Prepared launches, by a kernel and a binary that note what they are given."""

from importlib import import_module
from typing import Any

import pytest
import torch

from everyformer.ops import launching

pytest.importorskip("triton")


class Binary:
    """What Triton gives back: a function of the grid that takes all arguments in order."""

    def __init__(self) -> None:
        self.given: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*given: Any) -> None:
            self.given.append((grid, *given))

        return run


class Kernel:
    """One that Triton would compile."""

    arg_names = ("X", "Y", "n", "BLOCK", "EVEN")

    def __init__(self, binary: Binary | None) -> None:
        self.binary, self.calls = binary, 0

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def call(*given: Any, **options: Any) -> Binary | None:
            assert all(isinstance(x, torch.Tensor) for x in given[:2])
            assert options == {"EVEN": True, "num_warps": 4, "BLOCK": 16}
            self.calls += 1
            return self.binary

        return call


def prepared(kernel: Kernel) -> launching.Prepared:
    return launching.Prepared(kernel, (3,), 7, EVEN=True, num_warps=4, BLOCK=16)


def test_triton_is_asked_once_and_then_given_addresses() -> None:
    """Constants in the order of the kernel's arguments; options of Triton left out."""
    binary = Binary()
    kernel = Kernel(binary)
    launch, (x, y, z) = prepared(kernel), torch.zeros(3, 64).unbind()
    launch(x, y)
    assert (kernel.calls, binary.given) == (1, [])
    launch(y, z)
    launch(z, x)
    assert kernel.calls == 1
    addresses = [y.data_ptr(), z.data_ptr()], [z.data_ptr(), x.data_ptr()]
    assert binary.given == [((3, 1, 1), *two, 7, 16, True) for two in addresses]


def test_what_is_not_aligned_has_another_binary() -> None:
    binary = Binary()
    kernel = Kernel(binary)
    launch, x = prepared(kernel), torch.zeros(65)
    launch(x[1:], x[:64])
    launch(x[:64], x[:64])
    launch(x[:64], x[1:])
    assert (kernel.calls, len(binary.given)) == (3, 0)
    launch(x[:64], x[:64])
    assert (kernel.calls, len(binary.given)) == (3, 1)


def test_an_interpreted_kernel_is_called_each_time() -> None:
    kernel = Kernel(None)
    launch, x = prepared(kernel), torch.zeros(64)
    for _ in range(3):
        launch(x, x)
    assert kernel.calls == 3


def test_launches_that_are_alike_are_prepared_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And others apart: another number, option, dtype or grid."""
    monkeypatch.setattr(launching, "_PREPARED", {})
    kernel, x = Kernel(Binary()), torch.zeros(64)
    options = {"EVEN": True, "num_warps": 4, "BLOCK": 16}
    for given in ((x, x, 7), (x + 1, x, 7), (x, x, 8), (x, x.half(), 7)):
        launching.launch(kernel, (3,), *given, **options)
    launching.launch(kernel, (4,), x, x, 7, **options)
    assert kernel.calls == 4


@pytest.mark.parametrize("operator", ["toeplitz", "pairwise", "disentangled"])
def test_far_tokens_are_copied(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels count within a head in 32 bits."""
    far = torch.empty_strided((1, 2, 10**6, 64), (0, 64, 2304, 1), device="meta")
    assert launching.addressable(far).stride(2) == 64
    near = far[:, :, : 9 * 10**5]
    assert launching.addressable(near) is near
    module = f"everyformer.ops.{operator}_attention"
    launch, operands = (
        import_module(f"{module}.{name}") for name in ("launch", "operands")
    )
    monkeypatch.setattr(launching, "FARTHEST", 2000)
    x = torch.zeros(1, 5, 2, 16).transpose(1, 2)
    if operator == "toeplitz":
        q = launch.tidied(operands.Operands(x, x, x)).q
    elif operator == "pairwise":
        q = launch.Problem.of(operands.Operands(x, x, x)).tensors[0]
    else:
        index = torch.zeros(9, dtype=torch.int64)
        term = torch.zeros(1, 2, 5, 3)
        given = operands.Operands(x, x, x, None, term, index, None, None, 1.0, 0.0)
        q = launch.Problem.of(given).q
    assert q.is_contiguous()
    assert not x.is_contiguous()
