"""Toeplitz attention beside its peers: checked first, then timed, in one process.

On a GPU in bf16 with 12 heads of size 64, at lengths with the same number of tokens in
all; on a CPU in float32. Peak memory is what a call allocates beyond its inputs.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.table import Table
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from everyformer import figures
from everyformer.bench.gate import gate_row
from everyformer.bench.results import environment
from everyformer.bench.timing import gpu_bytes
from everyformer.ops import toeplitz_attention
from everyformer.ops.toeplitz_attention.reference import toeplitz
from everyformer.progress import Progress, no_progress

HEADS, SIZE = 12, 64
GPU_SHAPES = ((32, 512), (8, 2048), (2, 8192))
GPU_LONG = ((1, 16384), (1, 65536))
CPU_SHAPES = ((1, 512), (1, 2048))
ROUNDS = 10
IN_A_ROW = 5

Call = Callable[[], Any]


def run(*, quick: bool = False, progress: Progress = no_progress) -> dict[str, Any]:
    """Every contender at every length: forward, forward and backward, memory."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = GPU_SHAPES + GPU_LONG if device == "cuda" else CPU_SHAPES
    shapes = shapes[:1] if quick else shapes
    report: dict[str, Any] = {"theme": "attention", "environment": environment()}
    report["gate"] = gate(device)
    rows: list[dict[str, Any]] = []
    for done, (batch, n) in enumerate(shapes):
        progress(f"attention, n = {n:,}", done, len(shapes))
        rows += _measure(device, batch, n, rounds=3 if quick or device == "cpu" else ROUNDS)
    return report | {"heads": HEADS, "head_size": SIZE, "rows": rows}


def gate(device: str) -> list[dict[str, Any]]:
    """Errors against float64, of ours and of eager in the same dtype; two runs alike."""
    found: list[dict[str, Any]] = []
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    for dtype in dtypes if device == "cuda" else (torch.float32,):
        for n, causal in ((127, False), (1000, True), (1024, False)):
            tensors = _inputs(device, 2, n, dtype, heads=3)
            about = {"dtype": str(dtype), "n": n, "causal": causal}
            ours, eager = (partial(f, causal=causal) for f in (_ours, _eager))
            what, peer = "Toeplitz attention", ("eager", eager)
            found.append(gate_row(what, about, tensors, ours, peer, eager))
    return found


def _inputs(
    device: str, batch: int, n: int, dtype: torch.dtype, heads: int = HEADS
) -> list[Tensor]:
    """q, k, v, bias, gain and the gradient of the output."""
    made = torch.Generator(device).manual_seed(0)

    def normal(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=made, device=device).to(kind)

    q, k, v, upstream = (normal(batch, heads, n, SIZE) for _ in range(4))
    bias, gain = (normal(heads, 2 * n - 1, kind=torch.float32) for _ in range(2))
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


def _contenders(device: str, tensors: list[Tensor]) -> Iterator[tuple[str, Call, Call]]:
    """Name, forward, forward and backward; the same tensors for all."""
    q, k, v, bias, gain, upstream = tensors
    B, C = bias.detach(), gain.detach()

    def pair(function: Call, leaves: list[Tensor]) -> tuple[Call, Call]:
        return function, lambda: torch.autograd.grad(function(), leaves, upstream)

    everything = [q, k, v, bias, gain]
    yield "ours", *pair(lambda: _ours(q, k, v, bias, gain, False), everything)
    yield "ours, frozen", *pair(lambda: _ours(q, k, v, B, C, False), [q, k, v])
    yield "eager", *pair(lambda: _eager(q, k, v, bias, gain, False), everything)
    if device != "cuda":
        return
    compiled = torch.compile(_eager_float32)
    yield "eager, compiled", *pair(lambda: compiled(q, k, v, bias, gain), everything)
    for name, backend in (
        ("SDPA flash, no bias", SDPBackend.FLASH_ATTENTION),
        ("SDPA cuDNN, no bias", SDPBackend.CUDNN_ATTENTION),
    ):

        def sdpa(backend: SDPBackend = backend) -> Tensor:
            with sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(q, k, v)

        yield name, *pair(sdpa, [q, k, v])
    flex = torch.compile(_flex())
    yield "FlexAttention, no bias", *pair(lambda: flex(q, k, v), [q, k, v])


def _flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention


def _measure(device: str, batch: int, n: int, rounds: int) -> list[dict[str, Any]]:
    """One row for each contender; all take turns, so that a slow minute hits all alike."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    tensors = _inputs(device, batch, n, dtype)
    rows: list[dict[str, Any]] = []
    calls: dict[str, tuple[Call, Call]] = {}
    for name, forward, both in _contenders(device, tensors):
        row: dict[str, Any] = {"name": name, "n": n, "batch": batch}
        rows.append(row)
        if name.startswith("eager") and n > 8192:
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
    return rows


def _in_turns(
    device: str, calls: dict[str, tuple[Call, Call]], rounds: int
) -> dict[str, tuple[float, float]]:
    """Medians of forward, and of forward and backward, in milliseconds."""
    seen: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in calls}
    for turn in range(rounds + 1):
        for name, pair in calls.items():
            for kept, call in zip(seen[name], pair, strict=True):
                spent = _milliseconds(device, call)
                if turn:  # the first does not count
                    kept.append(spent)
    return {
        name: (statistics.median(forward), statistics.median(both))
        for name, (forward, both) in seen.items()
    }


def _milliseconds(device: str, call: Call) -> float:
    """One call; on a GPU the median of a few in a row, which hides what Python costs."""
    if device != "cuda":
        started = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - started)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(IN_A_ROW + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(events))


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal: milliseconds, MiB, and the ratio to ours."""
    shown = Table(title=f"Attention, {report['heads']} heads of {report['head_size']}")
    for name in ("n", "batch", "contender", "forward ms", "both ms", "peak MiB", "to ours"):
        shown.add_column(name, justify="left" if name == "contender" else "right")
    ours = {row["n"]: row.get("both_ms") for row in report["rows"] if row["name"] == "ours"}
    for row in report["rows"]:
        if "failed" in row:
            shown.add_row(str(row["n"]), str(row["batch"]), row["name"], row["failed"][:30])
            continue
        peak = row["peak_bytes"]
        shown.add_row(
            f"{row['n']:,}",
            str(row["batch"]),
            row["name"],
            f"{row['forward_ms']:.3f}",
            f"{row['both_ms']:.3f}",
            "" if peak is None else f"{peak / 2**20:.0f}",
            f"{row['both_ms'] / ours[row['n']]:.2f}",
        )
    return shown


@figures.styled
def picture(report: dict[str, Any], path: Path) -> None:
    """Time and, where it was measured, memory against the length, both logarithmic."""
    rows = [row for row in report["rows"] if "both_ms" in row]
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
