"""Toeplitz attention beside its peers: checked first, then timed, in one process.

On a GPU in bf16 with 12 heads of size 64 (and 6 of 128, and causal) at lengths with the
same number of tokens in all; on a CPU in float32. "both ms" is what the GPU works on
forward and backward, "queued ms" the time of one of many calls in a row, Python included.
Peak memory is what a call allocates beyond its inputs.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.table import Table
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

from everyformer import figures
from everyformer.bench.gate import gate_row
from everyformer.bench.kept import Kept
from everyformer.bench.tables import table_of
from everyformer.bench.timing import (
    LONG,
    gpu_bytes,
    gpu_milliseconds,
    kernels_of,
    queued_milliseconds,
)
from everyformer.ops import toeplitz_attention
from everyformer.ops.toeplitz_attention.reference import toeplitz
from everyformer.progress import Progress, no_progress

ROUNDS = 10


@dataclass(frozen=True)
class Shape:
    """What is attended to: batch, length, heads and their size."""

    batch: int
    n: int
    heads: int = 12
    size: int = 64
    causal: bool = False

    def __str__(self) -> str:
        return f"{self.heads} of {self.size}{', causal' if self.causal else ''}"


GPU_SHAPES = (
    Shape(32, 512),
    Shape(8, 2048),
    Shape(2, 8192),
    Shape(1, 65536),
    *(Shape(batch, n, 6, 128) for batch, n in ((8, 2048), (2, 8192))),
    *(Shape(batch, n, causal=True) for batch, n in ((8, 2048), (2, 8192))),
)
CPU_SHAPES = (Shape(1, 512), Shape(1, 2048))

Call = Callable[[], Any]


def run(
    *, quick: bool = False, progress: Progress = no_progress, kept: Kept | None = None
) -> dict[str, Any]:
    """Every contender at every length: forward, forward and backward, memory.

    A length is kept as soon as all contenders have taken their turns.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kept = kept or Kept()
    shapes = GPU_SHAPES if device == "cuda" else CPU_SHAPES
    shapes = shapes[:1] if quick else shapes
    rounds = 3 if quick or device == "cpu" else ROUNDS
    report: dict[str, Any] = {"theme": "attention", **kept.provenance}
    report["gate"] = gate(device)  # not kept: what is resumed may run other code
    rows: list[dict[str, Any]] = []
    for done, shape in enumerate(shapes):
        progress(f"attention, n = {shape.n:,}, {shape}", done, len(shapes))

        def measure(shape: Shape = shape) -> dict[str, Any]:
            return {"rows": _measure(device, shape, rounds)}

        rows += kept.row(asdict(shape), measure)["rows"]
    return report | {"rows": rows}


def gate(device: str) -> list[dict[str, Any]]:
    """Errors against float64, of ours and of eager in the same dtype; two runs alike."""
    found: list[dict[str, Any]] = []
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    for dtype in dtypes if device == "cuda" else (torch.float32,):
        for n, causal in ((127, False), (1000, True), (1024, False)):
            tensors = inputs(device, Shape(2, n, heads=3), dtype)
            about = {"dtype": str(dtype), "n": n, "causal": causal}
            ours, eager = (partial(f, causal=causal) for f in (_ours, _eager))
            what, peer = "Toeplitz attention", ("eager", eager)
            found.append(gate_row(what, about, tensors, ours, peer, eager))
    return found


def inputs(device: str, shape: Shape, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v, bias, gain and the gradient of the output."""
    made = torch.Generator(device).manual_seed(0)

    def normal(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=made, device=device).to(kind)

    sizes = shape.batch, shape.heads, shape.n, shape.size
    q, k, v, upstream = (normal(*sizes) for _ in range(4))
    bias, gain = (
        normal(shape.heads, 2 * shape.n - 1, kind=torch.float32) for _ in range(2)
    )
    leaves = [x.requires_grad_() for x in (q, k, v, bias, gain)]
    return [*leaves, upstream]


def _ours(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, gain: Tensor, causal: bool
) -> Tensor:
    return toeplitz_attention(q, k, v, bias, gain, causal=causal)


def _eager(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, gain: Tensor, causal: bool
) -> Tensor:
    """As one writes it in PyTorch, every product in the dtype of q."""
    n_q, n_k = q.shape[2], k.shape[2]
    B, C = (toeplitz(x.to(q.dtype), n_q, n_k) for x in (bias, gain))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + B
    if causal:
        future = torch.ones(n_q, n_k, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return (torch.softmax(scores, dim=-1) * C) @ v


def _eager_float32(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, gain: Tensor) -> Tensor:
    """The same with bias, softmax and gain in float32, which compiles much better."""
    B, C = (toeplitz(x, q.shape[2], k.shape[2]) for x in (bias, gain))
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5 + B
    return (torch.softmax(scores, dim=-1) * C).to(q.dtype) @ v


def with_bias(bias: Tensor) -> Callable[..., Tensor]:
    """What FlexAttention does to each score; it has no gain after the softmax."""
    middle = bias.shape[-1] // 2

    def added(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score + bias[h, query - key + middle]

    return added


def contenders(
    device: str, tensors: list[Tensor], causal: bool
) -> Iterator[tuple[str, Call, Call]]:
    """Name, forward, forward and backward; the same tensors for all."""
    q, k, v, bias, gain, upstream = tensors
    B, C = bias.detach(), gain.detach()

    def pair(function: Call, leaves: list[Tensor]) -> tuple[Call, Call]:
        return function, lambda: torch.autograd.grad(function(), leaves, upstream)

    everything = [q, k, v, bias, gain]
    yield "ours", *pair(lambda: _ours(q, k, v, bias, gain, causal), everything)
    yield "ours, frozen", *pair(lambda: _ours(q, k, v, B, C, causal), [q, k, v])
    if not causal:
        yield "eager", *pair(lambda: _eager(q, k, v, bias, gain, False), everything)
    if device != "cuda":
        return
    torch.compiler.reset()  # or what follows is compiled for any length, which is slower
    if not causal:
        compiled = torch.compile(_eager_float32, dynamic=False)
        yield "eager, compiled", *pair(lambda: compiled(q, k, v, bias, gain), everything)
    for name, backend in (
        ("SDPA flash, no bias", SDPBackend.FLASH_ATTENTION),
        ("SDPA cuDNN, no bias", SDPBackend.CUDNN_ATTENTION),
    ):

        def sdpa(backend: SDPBackend = backend) -> Tensor:
            with sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        yield name, *pair(sdpa, [q, k, v])
    if not causal:
        flex = torch.compile(flex_attention, dynamic=False)
        yield "FlexAttention, no bias", *pair(lambda: flex(q, k, v), [q, k, v])
        own = torch.compile(flex_attention, dynamic=False)
        added = with_bias(bias)
        yield (
            "FlexAttention, bias alone",
            *pair(lambda: own(q, k, v, score_mod=added), [q, k, v, bias]),
        )
    yield (
        "ours, bias alone",
        *pair(lambda: toeplitz_attention(q, k, v, bias, causal=causal), [q, k, v, bias]),
    )


def _measure(device: str, shape: Shape, rounds: int) -> list[dict[str, Any]]:
    """One row for each contender; all take turns, so that a slow minute hits all alike."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    tensors = inputs(device, shape, dtype)
    rows: list[dict[str, Any]] = []
    calls: dict[str, tuple[Call, Call]] = {}
    for name, forward, both in contenders(device, tensors, shape.causal):
        row: dict[str, Any] = {"name": name, **asdict(shape)}
        rows.append(row)
        if name.startswith("eager") and shape.n > 8192:
            row["failed"] = "not tried: n^2 memory"
            continue
        try:
            row["peak_bytes"] = gpu_bytes(both) if device == "cuda" else None
            calls[name] = (forward, both)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            row["failed"] = str(error).splitlines()[0][:200]
    times = _in_turns(device, calls, rounds)
    for row in rows:
        if row["name"] in times:
            row["forward_ms"], row["both_ms"] = times[row["name"]]
            if device == "cuda":
                both = calls[row["name"]][1]
                row["queued_ms"] = queued_milliseconds(both, 3)
                row["milliseconds_of_kernels"] = kernels_of(both)
    return rows


def _in_turns(
    device: str, calls: dict[str, tuple[Call, Call]], rounds: int
) -> dict[str, tuple[float, float]]:
    """Medians of forward, and of forward and backward, in milliseconds."""
    seen: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in calls}
    long = set[str]()
    for turn in range(rounds + 1):
        for name, pair in calls.items():
            for kept, call in zip(seen[name], pair, strict=True):
                spent = _milliseconds(device, call, long=name in long)
                if spent > LONG:
                    long.add(name)
                if turn:  # the first does not count
                    kept.append(spent)
    return {
        name: (statistics.median(forward), statistics.median(both))
        for name, (forward, both) in seen.items()
    }


def _milliseconds(device: str, call: Call, *, long: bool) -> float:
    """One call: what the GPU works on it, or the wall clock of the CPU."""
    if device == "cuda":
        return gpu_milliseconds(call, 1, 1) if long else gpu_milliseconds(call, 1)
    started = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - started)


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal: milliseconds, MiB, and the ratio to ours."""
    columns = {
        "n": "{n:,} x {batch}",
        "heads": "{shape}",
        "contender": "{name}",
        "both ms": "{both_ms:.3f}",
        "queued ms": "{queued_ms:.3f}",
        "peak MiB": "{peak_bytes:MiB.0f}",
        "to ours": "{ratio:.2f}",
    }
    rows, ours = list[dict[str, Any]](), dict[Shape, float]()
    for row in report["rows"]:
        shape = Shape(*(row[name] for name in Shape.__dataclass_fields__))
        rows.append(row | {"shape": shape})
        if "failed" not in row:
            if row["name"] == "ours":  # it comes first
                ours[shape] = row["both_ms"]
            rows[-1]["ratio"] = row["both_ms"] / ours[shape] if shape in ours else None
    title = "Attention, forward and backward"
    return table_of(title, rows, columns, left=["contender"], head=3, longest=30)


@figures.styled
def picture(report: dict[str, Any], path: Path) -> None:
    """Time and, where it was measured, memory against the length, both logarithmic."""
    rows = [
        row
        for row in report["rows"]
        if "both_ms" in row and row.get("size", 64) == 64 and not row.get("causal")
    ]
    names = list(dict.fromkeys(row["name"] for row in rows))
    measured = any(row["peak_bytes"] for row in rows)
    figure = Figure(figsize=(10.5 if measured else 6.4, 4))
    panels = figure.subplots(1, 2 if measured else 1, squeeze=False)[0]
    for place, name in enumerate(names):
        own = [row for row in rows if row["name"] == name]
        look = figures.curve(place, len(names))
        # Batches differ: time and memory of one sequence.
        times = [row["both_ms"] / row["batch"] for row in own]
        panels[0].plot([row["n"] for row in own], times, label=name, **look)
        if measured:
            own = [row for row in own if row["peak_bytes"]]
            peaks = [row["peak_bytes"] / row["batch"] / 2**20 for row in own]
            panels[1].plot([row["n"] for row in own], peaks, **look)
    words = ("forward + backward, ms for a sequence", "memory beyond the inputs, MiB")
    for axes, word in zip(panels, words, strict=False):
        figures.logarithmic(axes.xaxis, base=2)
        figures.tick_each(axes.xaxis, [row["n"] for row in rows])
        figures.logarithmic(axes.yaxis)
        axes.set(xlabel="n", ylabel=word)
    figures.one_legend(figure)
    figures.write(figure, path)
