"""What Python takes of a call of the attention operators: their kernels do nothing here.

    python benchmarks/host_time.py --out benchmarks/results

Below a thousand tokens kernels run shorter than Python needs to launch them. Everything up
to Triton's launcher runs as on a GPU, on tensors of the CPU; the launcher itself, 10 to 20
microseconds a kernel, is left out. The tenth percentile of many calls is shown, which other
programs on the machine hardly move; "a bare function" is what PyTorch itself takes for a
function of three tensors with a backward pass.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from torch import Tensor

from everyformer import patterns
from everyformer.bench.results import environment, write
from everyformer.bench.tables import table_of
from everyformer.ops import launching, sparse_attention, toeplitz_attention

CALLS = 10_000


class Idle:
    """A kernel, its binary and its launch, which does nothing but to count itself."""

    arg_names = ()
    launches = 0

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        """As Triton has it."""
        return self

    def __call__(self, *given: Any, **options: Any) -> "Idle":
        """As Triton has it."""
        Idle.launches += 1
        return self


class Bare(torch.autograd.Function):
    """Three tensors in, one out, three gradients."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        """Memory for the output."""
        ctx.save_for_backward(*given)
        return torch.empty_like(given[0])

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, ...]:
        """Memory for the gradients."""
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors)


def calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Forward and backward of each, unless it says otherwise."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 512, 16, requires_grad=True) for _ in range(3))
    bias, gain = (torch.randn(2, 1023, requires_grad=True) for _ in range(2))
    B, C, upstream = bias.detach(), gain.detach(), torch.randn(1, 2, 512, 16)

    def both(function: Callable[[], Tensor], *leaves: Tensor) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(function(), leaves, upstream)

    five = q, k, v, bias, gain
    yield "a bare function", both(lambda: Bare.apply(q, k, v), q, k, v)
    yield "toeplitz, five gradients", both(lambda: toeplitz_attention(*five), *five)
    yield "toeplitz, frozen", both(lambda: toeplitz_attention(q, k, v, B, C), q, k, v)
    yield "toeplitz, no vectors", both(lambda: toeplitz_attention(q, k, v), q, k, v)
    yield "toeplitz, forward alone", lambda: toeplitz_attention(*five)
    for name, pattern in (
        ("window", patterns.window(512, 8)),
        ("star", patterns.star(512)),
    ):
        part = pattern.parts[0]
        sparse = both(lambda part=part: sparse_attention(q, k, v, part), q, k, v)
        yield f"sparse, {name}", sparse


def measured(name: str, call: Callable[[], Any]) -> dict[str, Any]:
    """Microseconds and launches of a call."""
    for _ in range(20):
        call()
    Idle.launches = 0
    call()
    launches, spent = Idle.launches, list[int]()
    for _ in range(CALLS):
        began = time.perf_counter_ns()
        call()
        spent.append(time.perf_counter_ns() - began)
    tenth = sorted(spent)[CALLS // 10] / 1e3
    return {"call": name, "microseconds": tenth, "launches": launches}


def main() -> None:
    """Measure, print, and write the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for the numbers")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    ops = ("toeplitz_attention", "sparse_attention")
    paths = [import_module(f"everyformer.ops.{name}.paths") for name in ops]
    prepare = launching.Prepared.__init__

    def idle(self: Any, kernel: Any, *given: Any, **options: Any) -> None:
        prepare(self, Idle(), *given, **options)

    with (
        patch.object(paths[0], "_by_kernels", lambda q: True),
        patch.object(paths[1], "_by_kernels", lambda q: True),
        patch.object(launching.Prepared, "__init__", idle),
    ):
        rows = [measured(name, call) for name, call in calls()]
    form = {"": "{call}", "us": "{microseconds:.1f}", "launches": "{launches}"}
    console = Console()
    console.print(table_of("Python's share of a call", rows, form, left=[""]))
    if out is not None:
        report = {"theme": "host-time", "environment": environment(), "rows": rows}
        console.print(str(write(out, "host-time", report)), markup=False)


if __name__ == "__main__":
    main()
