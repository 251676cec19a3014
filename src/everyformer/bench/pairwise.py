"""Attention with a bias and a gain for each pair beside its peers: checked, then timed.

On a GPU in bf16 with bias and gain in float32: molecules of 38 atoms, of which each has its
own matrices, and longer sequences, of which a batch shares them; on a CPU in float32. "GPU
ms" is what the GPU works; "queued ms" the time of one of many calls in a row, Python
included. Peak memory is what forward and backward pass allocate beyond their inputs.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from everyformer.bench.gate import gate_row
from everyformer.bench.results import environment
from everyformer.bench.tables import table_of
from everyformer.bench.timing import (
    cpu_milliseconds,
    gpu_bytes,
    gpu_milliseconds,
    kernels_of,
    queued_milliseconds,
)
from everyformer.ops import pairwise_attention
from everyformer.progress import Progress, no_progress

Call = Callable[[], Any]

ROUNDS = 4
COMPILE_UNTIL = 150.0
"""Seconds after which no further peer is compiled."""


class Shape(NamedTuple):
    """Sizes of a problem, and who shares bias and gain."""

    batch: int
    heads: int
    n: int
    size: int
    shared: str

    @property
    def pairs(self) -> tuple[int, int, int, int]:
        """Of bias and gain."""
        return 1 if self.shared == "batch" else self.batch, self.heads, self.n, self.n


GPU_SHAPES = (
    Shape(256, 8, 38, 10, "nothing"),
    Shape(256, 32, 38, 16, "nothing"),
    Shape(256, 32, 38, 16, "batch"),
    Shape(32, 12, 512, 64, "batch"),
    Shape(8, 12, 2048, 64, "batch"),
)
CPU_SHAPES = (
    Shape(16, 8, 38, 10, "nothing"),
    Shape(16, 8, 38, 10, "batch"),
    Shape(2, 4, 512, 64, "batch"),
)
GATE_SHAPES = (
    Shape(4, 3, 38, 10, "nothing"),
    Shape(4, 3, 38, 16, "batch"),
    Shape(2, 2, 200, 64, "nothing"),
    Shape(2, 2, 256, 64, "batch"),
)


def run(*, quick: bool = False, progress: Progress = no_progress) -> dict[str, Any]:
    """The gate, then every contender at every shape."""
    deadline = time.monotonic() + COMPILE_UNTIL
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = GPU_SHAPES if device == "cuda" else CPU_SHAPES
    shapes = shapes[:2] if quick else shapes
    report: dict[str, Any] = {"theme": "pairwise", "environment": environment()}
    report["gate"] = gate(device)
    rows: list[dict[str, Any]] = []
    for done, shape in enumerate(shapes):
        progress(f"pairwise attention, n = {shape.n:,}", done, len(shapes))
        rows += _rows(device, shape, 1 if quick else ROUNDS, deadline)
    return report | {"rows": rows}


def gate(device: str) -> list[dict[str, Any]]:
    """Errors against float64, of ours and of eager in the same dtype; two runs alike."""
    found: list[dict[str, Any]] = []
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    for dtype in dtypes if device == "cuda" else (torch.float32,):
        for shape in GATE_SHAPES:
            about = {"dtype": str(dtype), "n": shape.n, "shared by": shape.shared}
            tensors = _inputs(device, shape, dtype)
            found.append(
                gate_row(
                    "Pairwise attention", about, tensors, _ours, ("eager", _eager), _eager
                )
            )
    return found


def _inputs(device: str, shape: Shape, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v, bias, gain and the gradient of the output."""
    made = torch.Generator(device).manual_seed(0)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=made, device=device)

    sizes = (shape.batch, shape.heads, shape.n, shape.size)
    q, k, v, upstream = (normal(*sizes).to(dtype) for _ in range(4))
    leaves = (q, k, v, normal(*shape.pairs), normal(*shape.pairs))
    return [*(x.requires_grad_() for x in leaves), upstream]


def _ours(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, gain: Tensor) -> Tensor:
    return pairwise_attention(q, k, v, bias, gain)


def _eager(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, gain: Tensor) -> Tensor:
    """As one writes it in PyTorch, every product in the dtype of q."""
    scores = q @ k.mT * q.shape[-1] ** -0.5 + bias.to(q.dtype)
    return (torch.softmax(scores, dim=-1) * gain.to(q.dtype)) @ v


def _float32(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, gain: Tensor) -> Tensor:
    """The same with bias, softmax and gain in float32, which compiles better."""
    scores = (q @ k.mT).float() * q.shape[-1] ** -0.5 + bias
    return (torch.softmax(scores, dim=-1) * gain).to(q.dtype) @ v


def with_sdpa(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """PyTorch's own attention; heads of other sizes than 8, 16, ... get zeros at the end.

    No fused kernel with a bias takes such heads, and SDPA would say nothing of it.
    """
    size = q.shape[-1]
    if size % 8:
        q, k, v = (functional.pad(x, (0, -size % 8)) for x in (q, k, v))
    attend = functional.scaled_dot_product_attention
    return attend(q, k, v, attn_mask=bias.to(q.dtype), scale=size**-0.5)[..., :size]


def _contenders(
    device: str, tensors: list[Tensor], deadline: float
) -> Iterator[tuple[str, Call, list[Tensor]]]:
    """Name, forward, and what gets gradients; the same tensors for all."""
    q, k, v, bias, gain, _ = tensors
    everything = [q, k, v, bias, gain]
    yield "ours", lambda: _ours(*everything), everything
    yield "eager", lambda: _eager(*everything), everything
    if device == "cuda" and time.monotonic() < deadline:
        torch.compiler.reset()
        compiled = torch.compile(_float32, dynamic=False)
        yield "eager, compiled", lambda: compiled(*everything), everything
    yield "ours, bias alone", lambda: pairwise_attention(q, k, v, bias), everything[:4]

    yield "SDPA, bias alone", lambda: with_sdpa(q, k, v, bias), everything[:4]
    frozen = bias.detach(), gain.detach()
    yield "ours, frozen", lambda: pairwise_attention(q, k, v, *frozen), everything[:3]


def _rows(device: str, shape: Shape, rounds: int, deadline: float) -> list[dict[str, Any]]:
    """One row for each contender."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    tensors = _inputs(device, shape, dtype)
    rows: list[dict[str, Any]] = []
    for name, forward, leaves in _contenders(device, tensors, deadline):

        def both(forward: Call = forward, leaves: list[Tensor] = leaves) -> Any:
            return torch.autograd.grad(forward(), leaves, tensors[-1])

        row: dict[str, Any] = {"contender": name} | shape._asdict()
        try:
            row |= _measured(device, forward, both, rounds)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            row["failed"] = str(error).splitlines()[0][:200]
        rows.append(row)
    return rows


def _measured(device: str, forward: Call, both: Call, rounds: int) -> dict[str, Any]:
    if device != "cuda":
        return {
            "forward_ms": cpu_milliseconds(forward, rounds),
            "both_ms": cpu_milliseconds(both, rounds),
        }
    return {
        "peak_bytes": gpu_bytes(both),
        "forward_ms": gpu_milliseconds(forward, rounds),
        "both_ms": gpu_milliseconds(both, rounds),
        "queued_ms": queued_milliseconds(both, rounds),
        "milliseconds_of_kernels": kernels_of(both),
    }


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal: milliseconds, MiB, and the ratio to ours."""
    columns = {
        "n": "{n:,}",
        "batch": "{batch}",
        "heads": "{heads} of {size}",
        "shared by": "{shared}",
        "contender": "{contender}",
        "forward ms": "{forward_ms:.3f}",
        "both ms": "{both_ms:.3f}",
        "queued ms": "{queued_ms:.3f}",
        "peak MiB": "{peak_bytes:MiB.0f}",
        "to ours": "{ratio:.2f}",
    }
    rows, ours = list[dict[str, Any]](), dict[Shape, float]()
    for row in report["rows"]:
        rows.append(row)
        if "failed" not in row:
            shape = Shape(*(row[name] for name in Shape._fields))
            ours.setdefault(shape, row["both_ms"])  # ours comes first
            rows[-1] = row | {"ratio": row["both_ms"] / ours[shape]}
    title = "Attention with a bias and a gain for each pair"
    left = ("shared by", "contender")
    return table_of(title, rows, columns, left, head=5, longest=30)
