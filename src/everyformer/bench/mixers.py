"""The convolutions beside `F.conv1d` and others: checked first, then timed.

16 filters on 768 dimensions, as in Yun et al. 2020. On a GPU in bf16, on a CPU in float32.
All get the same tensors, tokens as rows; contenders may return a transposed view. cuDNN
tries its kernels and keeps the fastest.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from everyformer import figures
from everyformer.bench.gate import gate_row
from everyformer.bench.results import environment, interleaved_medians
from everyformer.bench.tables import table_of
from everyformer.bench.timing import (
    gpu_bytes,
    gpu_milliseconds,
    kernels_of,
    wall_milliseconds,
)
from everyformer.ops import dynamic_convolution, light_convolution
from everyformer.progress import Progress, no_progress

DIM, FILTERS = 768, 16
GATE_DIM = 256
LENGTHS = (127, 128, 255)
GPU_SHAPES = ((32, 512), (8, 2048), (16, 1000))
CPU_SHAPES = ((8, 512), (2, 100))
GPU_ROUNDS, CPU_ROUNDS, SHORT = 7, 3, 7
LONG_MS = 20.0

Call = Callable[[], Any]
Convolution = Callable[[Tensor, Tensor], Tensor]


def _conv1d(x: Tensor, each: Tensor) -> Tensor:
    """`F.conv1d` with the faster way to pad: before it on a CPU, inside on a GPU."""
    length, groups = each.shape[1], each.shape[0]
    if x.is_cuda:
        found = functional.conv1d(x, each[:, None], padding=length // 2, groups=groups)
        return found[..., 1 - length % 2 :]
    left = (length - 1) // 2
    padded = functional.pad(x, (left, length - 1 - left))
    return functional.conv1d(padded, each[:, None], groups=groups)


def conv1d_by_dimension(x: Tensor, filters: Tensor) -> Tensor:
    """`F.conv1d` with a copy of the filter for each dimension."""
    each = filters.to(x.dtype).repeat_interleave(x.shape[2] // filters.shape[0], 0)
    return _conv1d(x.mT, each).mT


def conv1d_by_filter(x: Tensor, filters: Tensor) -> Tensor:
    """`F.conv1d` with the dimensions of a group as more sequences."""
    b, n, d = x.shape
    count = filters.shape[0]
    grouped = x.view(b, n, count, -1).permute(0, 3, 2, 1).reshape(-1, count, n)
    found = _conv1d(grouped, filters.to(x.dtype)).view(b, d // count, count, n)
    return found.permute(0, 3, 2, 1).reshape(b, n, d)


def by_fft(x: Tensor, filters: Tensor) -> Tensor:
    """A product of Fourier transforms along the tokens, in float32."""
    n, d = x.shape[1:]
    count, length = filters.shape
    size = 1 << (n + length - 2).bit_length()
    wide = torch.promote_types(x.dtype, torch.float32)
    turned = torch.fft.rfft(filters.to(wide).flip(1), size).repeat_interleave(d // count, 0)
    found = torch.fft.irfft(torch.fft.rfft(x.mT.to(wide), size) * turned, size)
    first = length - 1 - (length - 1) // 2
    return found[..., first : first + n].mT.to(x.dtype)


def by_dense_matrix(x: Tensor, filters: Tensor) -> Tensor:
    """The whole n x n Toeplitz matrix of each filter."""
    b, n = x.shape[:2]
    count, length = filters.shape
    token = torch.arange(n, device=x.device)
    tap = token - token[:, None] + (length - 1) // 2
    inside = (tap >= 0) & (tap < length)
    matrices = filters.to(x.dtype)[:, tap.clamp(0, length - 1)] * inside
    return torch.einsum("hij,bjhr->bihr", matrices, x.view(b, n, count, -1)).reshape(
        x.shape
    )


def by_filters_of_tokens(x: Tensor, filters: Tensor) -> Tensor:
    """Dynamic convolution, with the same filters for all tokens."""
    return dynamic_convolution(x, filters.expand(*x.shape[:2], *filters.shape))


OURS, CONV1D = "ours", "F.conv1d, filter for each dimension"
CONV1D_GROUPS = "F.conv1d, one for each filter"
CONTENDERS: dict[str, Convolution] = {
    OURS: light_convolution,
    "ours, dynamic": by_filters_of_tokens,
    CONV1D: conv1d_by_dimension,
    CONV1D_GROUPS: conv1d_by_filter,
    "FFT": by_fft,
    "dense Toeplitz": by_dense_matrix,
}


def run(*, quick: bool = False, progress: Progress = no_progress) -> dict[str, Any]:
    """The gate; every contender at every shape and filter length; once with a GLU."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = GPU_SHAPES if device == "cuda" else CPU_SHAPES
    shapes, lengths = (((2, 64),), (128,)) if quick else (shapes, LENGTHS)
    report: dict[str, Any] = {"theme": "mixers", "environment": environment()}
    report |= {"gate": gate(device), "dim": DIM, "filters": FILTERS}
    report["threads"] = torch.get_num_threads()
    rows: list[dict[str, Any]] = []
    rounds = GPU_ROUNDS if device == "cuda" else CPU_ROUNDS
    cases = [(b, n, k, False) for b, n in shapes for k in lengths]
    cases += [(*shapes[0], 128, True)]
    for done, (b, n, length, glu) in enumerate(cases):
        progress(f"mixers, n = {n:,}, K = {length}", done, len(cases))
        more = SHORT if b * n < 1024 else 1
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            rows += _measure(device, b, n, length, glu, 1 if quick else more * rounds)
    return report | {"rows": rows, "not_slower_than_conv1d": not_slower(rows)}


def gate(device: str) -> list[dict[str, Any]]:
    """Errors against float64, of ours and of `F.conv1d` in the same dtype; equal bits."""
    found: list[dict[str, Any]] = []
    halves = (torch.bfloat16, torch.float16) if device == "cuda" else (torch.bfloat16,)
    ours = {"The convolution": light_convolution, "Dynamic": by_filters_of_tokens}
    peer = ("conv1d", conv1d_by_dimension)
    for dtype in (*halves, torch.float32):
        for n, length in ((200, 128), (65, 31), (1, 128)):
            tensors = _inputs(device, 1, n, length, dtype, GATE_DIM, GATE_DIM)
            about = {"dtype": str(dtype), "n": n, "length": length}
            for what, function in ours.items():
                about["name"] = what
                row = gate_row(what, about, tensors, function, peer, conv1d_by_dimension)
                found.append(row)
    return found


def _inputs(
    device: str, b: int, n: int, length: int, dtype: torch.dtype, width: int, out: int
) -> list[Tensor]:
    """Tokens, filters and the gradient of the output, tokens as rows."""
    made = torch.Generator(device).manual_seed(0)
    shapes = ((b, n, width), (FILTERS, length), (b, n, out))
    return [torch.randn(*s, generator=made, device=device).to(dtype) for s in shapes]


def _measure(
    device: str, b: int, n: int, length: int, glu: bool, rounds: int
) -> list[dict[str, Any]]:
    """One row for each contender."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    tensors = _inputs(device, b, n, length, dtype, 2 * DIM if glu else DIM, DIM)
    rows: list[dict[str, Any]] = []
    calls: list[Call] = []
    for name, function in CONTENDERS.items():
        row = {"name": name, "n": n, "batch": b, "length": length, "glu": glu}
        rows.append(row)
        calls += _calls(function, tensors, glu)
        if device == "cuda":
            row["peak_bytes"] = gpu_bytes(calls[-1])
    if device == "cuda":
        times = [_gpu_time(call, rounds) for call in calls]
    else:
        found = interleaved_medians(dict(enumerate(calls)), rounds)
        times = [1e3 * seconds for seconds in found.values()]
    for k, row in enumerate(rows):
        if device == "cuda":
            row["milliseconds_of_kernels"] = kernels_of(calls[2 * k + 1])
        row["forward_ms"], row["both_ms"] = times[2 * k], times[2 * k + 1]
    return rows


def _gpu_time(call: Call, rounds: int) -> float:
    """What the GPU needs; of a long call the time with Python, which is then nothing."""
    wall = wall_milliseconds(call, CPU_ROUNDS)
    return wall if wall > LONG_MS else gpu_milliseconds(call, rounds)


def _calls(function: Convolution, tensors: list[Tensor], glu: bool) -> tuple[Call, Call]:
    """Forward; forward and backward."""
    *given, upstream = tensors
    x, filters = (t.detach().clone().requires_grad_() for t in given)

    def forward() -> Tensor:
        return function(functional.glu(x) if glu else x, filters)

    return forward, lambda: torch.autograd.grad(forward(), [x, filters], upstream)


def not_slower(rows: list[dict[str, Any]]) -> bool:
    """Whether ours takes at most the time of both uses of `F.conv1d`, in every row."""
    cases: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        key = tuple(row[k] for k in ("n", "batch", "length", "glu"))
        cases.setdefault(key, {})[row["name"]] = row
    return all(
        case[OURS][time] <= case[peer][time]
        for case in cases.values()
        for peer in (CONV1D, CONV1D_GROUPS)
        for time in ("forward_ms", "both_ms")
    )


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal: milliseconds, MiB, and the ratio to ours."""
    title = (
        f"{report['filters']} filters on {report['dim']} dimensions; not slower than "
        f"F.conv1d anywhere: {'yes' if report['not_slower_than_conv1d'] else 'no'}"
    )
    columns = {
        "n": "{n:,}",
        "batch": "{batch}",
        "K": "{length}",
        "GLU": "{with_glu}",
        "contender": "{name}",
        "forward ms": "{forward_ms:.3f}",
        "both ms": "{both_ms:.3f}",
        "peak MiB": "{peak_bytes:MiB.0f}",
        "to ours": "{ratio:.2f}",
    }
    rows, ours = list[dict[str, Any]](), 1.0
    for row in report["rows"]:
        ours = row["both_ms"] if row["name"] == OURS else ours
        more = {"with_glu": "yes" if row["glu"] else "no", "ratio": row["both_ms"] / ours}
        rows.append(row | more)
    return table_of(title, rows, columns, left=["contender"])


@figures.styled
def picture(report: dict[str, Any], path: Path) -> None:
    """Forward and backward together at the first shape, for each filter length."""
    figure = Figure(figsize=(8, 4))
    axes = figure.subplots()
    first = report["rows"][0]
    shown = [row for row in report["rows"] if row["n"] == first["n"] and not row["glu"]]
    lengths = sorted({row["length"] for row in shown})
    names = {row["name"] for row in shown}
    measured = [name for name in CONTENDERS if name in names]
    for place, name in enumerate(measured):
        rows = [row for row in shown if row["name"] == name]
        places = [lengths.index(row["length"]) for row in rows]
        look = figures.curve(place, len(measured))
        axes.plot(places, [row["both_ms"] for row in rows], label=name, **look)
    axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
    figures.logarithmic(axes.yaxis)
    axes.set(xlabel="filter length", ylabel="forward + backward, ms")
    figures.title(axes, f"n = {first['n']:,}, batch {first['batch']}")
    figures.legend_beside(axes)
    figures.write(figure, path)
