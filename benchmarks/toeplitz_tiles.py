"""Time the kernels of `toeplitz_attention` on a GPU with other tiles than `tuning` has.

    python benchmarks/toeplitz_tiles.py                    # heads of 64, n = 8,192, batch 2
    python benchmarks/toeplitz_tiles.py --size 128 --n 2048 --causal

One kernel at a time, the others as they are, with bias, gain and all five gradients in
bf16. All sizes are compiled first, by several processes. A line for each: milliseconds of
the kernel, the median of several calls in turns, beside the usual tiles (first), and
whether the results are those of the usual tiles to the rounding of bf16.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from everyformer.bench.attention import Shape, inputs
from everyformer.bench.timing import kernels_of
from everyformer.ops import toeplitz_attention
from everyformer.ops.launching import Tiles
from everyformer.ops.toeplitz_attention import launch, problem, tuning

SIZES = {
    "forward": [
        (64, 64, 4, 3), (64, 64, 4, 2), (64, 64, 4, 4), (64, 128, 4, 3), (64, 128, 4, 2),
        (128, 64, 4, 3), (128, 64, 8, 3), (128, 64, 8, 2), (128, 128, 8, 2),
        (128, 128, 8, 3),
    ],
    "dq": [
        (64, 64, 4, 3), (64, 128, 4, 3), (64, 128, 4, 2), (128, 64, 8, 3),
        (128, 64, 8, 2), (128, 128, 8, 2), (128, 128, 8, 3),
    ],
    "dkv": [
        (64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 8, 3), (128, 64, 8, 2), (64, 128, 8, 3),
        (64, 128, 8, 2), (128, 128, 8, 2),
    ],
    "diagonal": [
        (128, 64, 8, 3), (128, 64, 8, 2), (128, 64, 8, 4), (64, 64, 4, 3), (64, 64, 4, 2),
        (128, 64, 4, 3), (128, 128, 8, 2),
    ],
}  # fmt: skip
"""Queries, keys, warps, stages; with four warps also with the registers named."""

ROUNDS, PROCESSES = 7, 14


def choices() -> Iterator[tuple[str, Tiles]]:
    """Every kernel with every size."""
    for kernel, sizes in SIZES.items():
        for size in sizes:
            for registers in (None, 255) if size[2] == 4 else (None,):
                yield kernel, Tiles(*size, registers=registers)


def step(tensors: list[Tensor], causal: bool) -> tuple[Tensor, ...]:
    """Forward and backward."""
    *leaves, upstream = tensors
    out = toeplitz_attention(*leaves, causal=causal)
    return out.detach(), *torch.autograd.grad(out, leaves, upstream)


def use(chosen: tuning.Tuning) -> None:
    """Other tiles from now on."""
    problem.tuning_for = lambda *_, **__: chosen
    for prepared in (launch._table, launch._attend, launch._gradients):
        prepared.cache_clear()


def compiled(shape: Shape, share: int) -> None:
    """Run some of the choices once, so that Triton keeps their binaries."""
    tensors = inputs("cuda", shape, torch.bfloat16)
    for kernel, tiles in [*choices()][share::PROCESSES]:
        use(replace(tuning.HALF[shape.size], **{kernel: tiles}))
        try:
            step(tensors, shape.causal)
        except Exception as error:  # what does not fit is not chosen
            sys.stderr.write(f"{kernel} {tiles}: {type(error).__name__}\n")


def timed(shape: Shape) -> None:
    """A line for each choice."""
    tensors = inputs("cuda", shape, torch.bfloat16)
    usual = tuning.HALF[shape.size]
    every: list[tuple[str, Tiles]] = [
        *((kernel, getattr(usual, kernel)) for kernel in SIZES), *choices()
    ]  # fmt: skip
    use(usual)
    expected = step(tensors, shape.causal)
    found: dict[int, list[float]] = {}
    errors: dict[int, float] = {}
    for turn in range(ROUNDS):
        for number, (kernel, tiles) in enumerate(every):
            use(replace(usual, **{kernel: tiles}))
            try:
                results = step(tensors, shape.causal)
            except Exception:
                continue
            if not turn:
                off = [
                    float((x - y).float().norm() / y.float().norm())
                    for x, y in zip(results, expected, strict=True)
                ]
                errors[number] = max(off)
            times = kernels_of(lambda: step(tensors, shape.causal))
            found.setdefault(number, []).append(times[f"{kernel}_kernel"])
    for number, (kernel, tiles) in enumerate(every):
        what = f"{kernel:9s} {tiles.queries:4d} {tiles.keys:4d} {tiles.warps} "
        what += f"{tiles.stages} {tiles.registers or '':3}"
        what += " (usual)" if number < len(SIZES) else ""
        told = "does not fit"
        if number in found:
            middle = statistics.median(found[number])
            told = f"{middle:.4f} ms, differs by {errors[number]:.1e}"
        sys.stdout.write(f"{what:34s} {told}\n")


def main() -> None:
    """Compile by several processes, then time in this one."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--n", type=int, default=8192)
    words.add_argument("--size", type=int, default=64, choices=(64, 128))
    words.add_argument("--causal", action="store_true")
    words.add_argument("--share", type=int, help=argparse.SUPPRESS)
    told = words.parse_args()
    heads = 768 // told.size
    shape = Shape(2**14 // told.n, told.n, heads, told.size, told.causal)
    if told.share is not None:
        compiled(shape, told.share)
        return
    command = [sys.executable, __file__, *sys.argv[1:], "--share"]
    running = [subprocess.Popen([*command, str(share)]) for share in range(PROCESSES)]
    for process in running:
        process.wait()
    timed(shape)


if __name__ == "__main__":
    main()
