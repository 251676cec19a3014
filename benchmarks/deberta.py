"""`python benchmarks/deberta.py [--quick] [--tune]`: the attention of DeBERTa.

12 heads of 64 with the 512 rows of DeBERTa-v3, forward and backward, bf16 on a GPU: ours,
the code of transformers (one gather of n x n numbers for each term and head), that
compiled, and PyTorch's flash attention without any positions as a floor. All functions
take q, k, v and the vectors of the rows, and give the gradients of all five.
Correctness first, against float64. `--tune` tries other tiles of the kernels. On a CPU one
short length runs, as a rehearsal.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from everyformer.bench.timing import (
    cpu_milliseconds,
    gpu_bytes,
    gpu_milliseconds,
    wall_milliseconds,
)
from everyformer.layers import LogBuckets
from everyformer.ops import disentangled_attention

HEADS, SIZE, ROWS = 12, 64, 512
SHAPES = ((32, 512), (8, 2048), (4, 4096))

parser = argparse.ArgumentParser()
parser.add_argument("--quick", action="store_true", help="the first length alone")
parser.add_argument("--tune", action="store_true", help="other tiles, at n = 2,048")
options = parser.parse_args()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KIND = torch.bfloat16 if DEVICE == "cuda" else torch.float32


def drawn(batch: int, heads: int, n: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """q, k, v and the vectors of the rows; the row of each offset; an upstream gradient."""
    random = torch.Generator(DEVICE).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, device=DEVICE).to(KIND)

    q, k, v, upstream = (normal(batch, heads, n, SIZE) for _ in range(4))
    leaves = [q, k, v, normal(heads, ROWS, SIZE), normal(heads, ROWS, SIZE)]
    index = LogBuckets()(torch.arange(1 - n, n, device=DEVICE)) + 1
    return [x.requires_grad_() for x in leaves], index, upstream


def ours(
    q: Tensor, k: Tensor, v: Tensor, r: Tensor, s: Tensor, index: Tensor, places: Tensor
) -> Tensor:
    """The operator, with the products that it takes."""
    return disentangled_attention(q, k, v, q @ r.mT, k @ s.mT, index)


def theirs(
    q: Tensor, k: Tensor, v: Tensor, r: Tensor, s: Tensor, index: Tensor, places: Tensor
) -> Tensor:
    """`DisentangledSelfAttention` of transformers between its projections."""
    root = (3 * q.shape[-1]) ** 0.5
    places = places.expand(*q.shape[:2], -1, -1)
    scores = q @ (k.mT / root)
    scores = scores + torch.gather(q @ r.mT, -1, places) / root
    scores = scores + torch.gather(k @ s.mT, -1, places.mT).mT / root
    return torch.softmax(scores, -1) @ v


def matrix(index: Tensor, n: int) -> Tensor:
    """The row of each query and key."""
    token = torch.arange(n, device=index.device)
    return index[token[:, None] - token + n - 1]


def gate() -> list[str]:
    """Errors of output and gradients against float64, ours and theirs; two runs alike."""
    lines: list[str] = []
    for n in (333, 1024):
        leaves, index, upstream = drawn(2, 3, n)
        places = matrix(index, n)
        exact = [x.detach().double().requires_grad_() for x in leaves]
        q, k, v, r, s = exact
        out = theirs(q, k, v, r, s, index, places)
        wanted = [out.detach(), *torch.autograd.grad(out, exact, upstream.double())]
        errors: list[list[float]] = []
        bits: list[list[Tensor]] = []
        q, k, v, r, s = leaves
        for function in (ours, ours, theirs):
            out = function(q, k, v, r, s, index, places)
            found = [out.detach(), *torch.autograd.grad(out, leaves, upstream)]
            errors.append(
                [
                    float((x.double() - y).abs().max() / y.abs().max().clamp_min(1))
                    for x, y in zip(found, wanted, strict=True)
                ]
            )
            bits.append(found)
        # The sums over all tokens of r and s are products of torch: not ours to repeat.
        alike = all(map(torch.equal, bits[0][:4], bits[1][:4]))
        good = all(a <= max(2 * b, 1e-2) for a, b in zip(errors[0], errors[2], strict=True))
        text = ", ".join(
            f"{name} {a:.1e}/{b:.1e}"
            for name, a, b in zip("oqkvrs", errors[0], errors[2], strict=True)
        )
        lines.append(f"n = {n}: error of ours/theirs {text}; equal bits: {alike}")
        if not (good and alike):
            raise SystemExit(f"Wrong: {lines[-1]}")
    return lines


def measured(call: Callable[[], Any]) -> list[float]:
    """Milliseconds on the device, with Python, and MiB."""
    call()
    if DEVICE == "cpu":
        return [cpu_milliseconds(call, 2), 0.0, 0.0]
    return [
        gpu_milliseconds(call, 4), wall_milliseconds(call, 8), gpu_bytes(call) / 2**20
    ]  # fmt: skip


def rows(batch: int, n: int) -> list[tuple[str, list[float], list[float]]]:
    """Name, forward, forward and backward."""
    leaves, index, upstream = drawn(batch, HEADS, n)
    places = matrix(index, n)
    contenders: list[tuple[str, Callable[..., Tensor]]] = [("ours", ours)]
    contenders.append(("transformers", theirs))
    if DEVICE == "cuda":
        torch.compiler.reset()  # or what follows is compiled for any length
        compiled = torch.compile(theirs, dynamic=False)
        contenders.append(("transformers, compiled", compiled))

    def flash(q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v)

    contenders.append(("SDPA, no positions", flash))
    found: list[tuple[str, list[float], list[float]]] = []
    for name, function in contenders:

        def forward(function: Callable[..., Tensor] = function) -> Tensor:
            with torch.no_grad():
                return function(*leaves, index, places)

        def both(function: Callable[..., Tensor] = function) -> Any:
            out = function(*leaves, index, places)
            return torch.autograd.grad(out, leaves, upstream, allow_unused=True)

        found.append((name, measured(forward), measured(both)))
    return found


def tune(console: Console) -> None:
    """Times of the operator alone with other tiles, one kernel changed at a time."""
    from dataclasses import replace

    from everyformer.ops.disentangled_attention import launch

    leaves, index, upstream = drawn(8, HEADS, 2048)
    q, k, v, r, s = leaves
    terms = [(q @ r.mT).detach().requires_grad_(), (k @ s.mT).detach().requires_grad_()]
    given = [q, k, v, *terms]

    def both() -> Any:
        out = disentangled_attention(q, k, v, terms[0], terms[1], index)
        return torch.autograd.grad(out, given, upstream)

    start = launch.HALF[64]
    tiles = [(64, 64, 4), (64, 32, 4), (32, 64, 4), (64, 64, 8), (128, 64, 8), (128, 32, 8)]
    console.print(f"n = 2,048, batch 8, as it is: {gpu_milliseconds(both, 4):.3f} ms")
    for name in ("forward", "dq", "dkv"):
        for queries, keys, warps in tiles:
            for stages in (1, 2, 3):
                changed = launch.Tiles(queries, keys, warps, stages)
                launch.HALF[64] = replace(start, **{name: changed})
                try:
                    both()
                    text = f"{gpu_milliseconds(both, 3):.3f} ms"
                except Exception as error:  # too much shared memory, for one
                    text = f"{type(error).__name__}: {str(error)[:60]}"
                console.print(f"{name} {changed}: {text}", markup=False)
    launch.HALF[64] = start


screen = Console(width=140)
for line in gate():
    screen.print(line, markup=False)
if options.tune:
    tune(screen)
    raise SystemExit
shapes = SHAPES if DEVICE == "cuda" else ((1, 256),)
for batch, n in shapes[:1] if options.quick else shapes:
    table = Table(
        "", "forward ms", "forward + backward ms", "the same by the clock", "MiB",
        title=f"n = {n:,}, batch {batch}, {HEADS} heads of {SIZE}, {ROWS} rows, {KIND}",
    )  # fmt: skip
    for name, forward, both in rows(batch, n):
        table.add_row(
            name, f"{forward[0]:.2f}", f"{both[0]:.2f}", f"{both[1]:.2f}", f"{both[2]:,.0f}"
        )
    screen.print(table)
