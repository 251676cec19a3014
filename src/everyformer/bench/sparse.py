"""Sparse attention beside FlexAttention and dense attention: checked first, then timed.

On a GPU in bf16, batch 1, 12 heads of size 64; on one thread of a CPU in float32 with 4
heads. Peak memory is what a call allocates beyond its inputs. All contenders run in one
process, on the same tensors.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.table import Table
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from everyformer import figures, patterns
from everyformer.bench.gate import gate_row, masked_attention
from everyformer.bench.results import environment
from everyformer.bench.tables import table_of
from everyformer.bench.timing import (
    cpu_milliseconds,
    exponent,
    gpu_bytes,
    gpu_milliseconds,
    kernels_of,
    queued_milliseconds,
    wall_milliseconds,
)
from everyformer.errors import InputError
from everyformer.ops import sparse_attention
from everyformer.ops.sparse_attention.reference import sparse_attention_reference
from everyformer.patterns import Part, Pattern
from everyformer.progress import Progress, no_progress

SIZE = 64
GPU_HEADS, CPU_HEADS = 12, 4
GPU_LENGTHS = (2048, 4096, 8192, 16384, 32768)
CPU_LENGTHS = (2048, 4096, 8192)
WIDTH, BLOCK, KEYS = 256, 128, 16
ROUNDS = 6
TIME_LIMIT = 600.0
"""Seconds after which no further peer is compiled and timed."""

WITH_PYTHON = ("queued", "wall")
"""Further measures on a GPU: many calls in a row, and one call until its end."""

DENSE = {
    "SDPA, flash": SDPBackend.FLASH_ATTENTION,
    "SDPA, cuDNN": SDPBackend.CUDNN_ATTENTION,
}

LATE = "not begun: the time limit"

Call = Callable[[], Any]
Made = Callable[[int], Pattern]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

PATTERNS: dict[str, Made] = {
    "window": lambda n: patterns.window(n, WIDTH),
    "bigbird": lambda n: patterns.big_bird_blocks(n, BLOCK),
    "strided": lambda n: patterns.strided(n, _root(n)),
    "fixed": lambda n: patterns.fixed(n, _root(n)),
    "star": patterns.star,
    "random": lambda n: patterns.random(n, KEYS),
}
"""The window is +-256; BigBird has 3 + 3 + 2 blocks of 128; w is about sqrt(2 n).

Strided and fixed have O(n^1.5) connections at that width, the others O(n).
"""


def _root(n: int) -> int:
    """The power of two nearest to sqrt(2 n) from below: 256 at n = 32,768."""
    return 1 << ((2 * n).bit_length() - 1) // 2


def run(
    *,
    quick: bool = False,
    progress: Progress = no_progress,
    only: list[str] | None = None,
) -> dict[str, Any]:
    """The gate; every pattern at every length; and all contenders at the longest."""
    strange = [name for name in only or () if name not in PATTERNS]
    if strange:
        msg = f"{', '.join(strange)} is not a pattern here. Choose {', '.join(PATTERNS)}."
        raise InputError(msg)
    chosen = {name: PATTERNS[name] for name in only or PATTERNS}
    deadline = time.monotonic() + TIME_LIMIT
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lengths = GPU_LENGTHS if device == "cuda" else CPU_LENGTHS
    lengths = (256, 512) if quick else lengths
    rounds = 1 if quick else ROUNDS if device == "cuda" else 3
    report: dict[str, Any] = {"theme": "sparse", "environment": environment()}
    report |= {"gate": gate(device, chosen), "heads": _heads(device), "head_size": SIZE}
    rows: list[dict[str, Any]] = []
    for done, n in enumerate(lengths):
        progress(f"sparse attention, n = {n:,}", done, len(lengths))
        tensors = inputs(device, n)
        longest = n == lengths[-1]
        if longest:
            rows += _dense_rows(device, n, tensors, rounds)
        for name, make in chosen.items():
            until = deadline if longest else None
            rows += _rows(device, name, make(n), tensors, rounds, peers_until=until)
    report["rows"] = rows
    report |= {"exponents": exponents(rows), "targets": targets(rows)}
    if device == "cuda":
        report |= {f"{way}_targets": targets(rows, f"{way}_ms") for way in WITH_PYTHON}
    return report


def _heads(device: str) -> int:
    return GPU_HEADS if device == "cuda" else CPU_HEADS


def inputs(device: str, n: int, heads: int | None = None, batch: int = 1) -> list[Tensor]:
    """q, k, v and the gradient of the output."""
    made = torch.Generator(device).manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shape = (batch, heads or _heads(device), n, SIZE)
    q, k, v, upstream = (
        torch.randn(*shape, generator=made, device=device).to(dtype) for _ in range(4)
    )
    return [*(x.requires_grad_() for x in (q, k, v)), upstream]


def gate(device: str, chosen: dict[str, Made] = PATTERNS) -> list[dict[str, Any]]:
    """Errors against float64, of ours and of dense masked attention; two runs alike."""
    found: list[dict[str, Any]] = []
    for n in (127, 640):
        for name, make in chosen.items():
            found += [_gate(device, name, part) for part in _parts(make(n))]
    return found


def _parts(pattern: Pattern) -> tuple[Part, ...]:
    """All parts, and their union if there are several."""
    return (*pattern.parts, *(pattern.union().parts if pattern.p > 1 else ()))


def _gate(device: str, name: str, part: Part) -> dict[str, Any]:
    tensors = inputs(device, part.n, heads=2, batch=2)
    peer = ("eager", masked_attention(torch.tensor(part.mask(), device=device)))
    ours = partial(sparse_attention, part=part)
    exact = partial(sparse_attention_reference, part=part)
    about: dict[str, Any] = {"pattern": name, "part": part.kind, "n": part.n}
    about["dtype"] = str(tensors[0].dtype)
    return gate_row("Sparse attention", about, tensors, ours, peer, exact)


def _rows(
    device: str,
    name: str,
    pattern: Pattern,
    tensors: list[Tensor],
    rounds: int,
    *,
    peers_until: float | None,
) -> list[dict[str, Any]]:
    """Ours for every part and their union; peers too, if there is time."""
    rows: list[dict[str, Any]] = []
    for part in _parts(pattern):
        about = {"pattern": name, "part": part.kind, "n": part.n}
        about["connections"] = part.connections
        mine = _measured(
            device, lambda x=tensors, part=part: forward_and_backward(x, part), rounds
        )
        rows.append(about | {"contender": "ours"} | mine)
        if peers_until is not None and device == "cuda":
            late = time.monotonic() > peers_until
            flex = {"failed": LATE} if late else _flex(part, tensors, rounds)
            rows.append(about | {"contender": "FlexAttention"} | flex)
    return rows


def _measured(device: str, both: Call, rounds: int) -> dict[str, Any]:
    """Forward and backward: what GPU or CPU need, what Python adds, and memory."""
    if device != "cuda":
        return {"cpu_ms": cpu_milliseconds(both, rounds)}
    return {
        "peak_bytes": gpu_bytes(both),
        "gpu_ms": gpu_milliseconds(both, rounds),
        "queued_ms": queued_milliseconds(both, rounds),
        "wall_ms": wall_milliseconds(both, 3 * rounds),
        "milliseconds_of_kernels": kernels_of(both),
    }


def _measure(row: dict[str, Any]) -> str:
    """What counts: the work of the GPU, or of one thread of the CPU."""
    return "gpu_ms" if "gpu_ms" in row else "cpu_ms"


def forward_and_backward(tensors: list[Tensor], part: Part) -> Any:
    """Sparse attention and its gradients, of what `inputs` made."""
    q, k, v, upstream = tensors
    return torch.autograd.grad(sparse_attention(q, k, v, part), (q, k, v), upstream)


def _dense_rows(
    device: str, n: int, tensors: list[Tensor], rounds: int
) -> list[dict[str, Any]]:
    """All pairs, by each kernel of PyTorch that may be the fastest."""
    q, k, v, upstream = tensors
    attend = functional.scaled_dot_product_attention
    rows: list[dict[str, Any]] = []
    for name, backend in DENSE.items() if device == "cuda" else list(DENSE.items())[:1]:

        def both(backend: SDPBackend = backend) -> Any:
            with sdpa_kernel(backend):
                return torch.autograd.grad(attend(q, k, v), (q, k, v), upstream)

        row: dict[str, Any] = {"pattern": "dense", "contender": name, "n": n}
        try:
            rows.append(row | _measured(device, both, rounds))
        except (RuntimeError, torch.OutOfMemoryError) as error:
            rows.append(row | {"failed": str(error).splitlines()[0][:200]})
    return rows


def _flex(part: Part, tensors: list[Tensor], rounds: int) -> dict[str, Any]:
    """FlexAttention with the block mask of the same part, compiled."""
    q, k, v, upstream = tensors
    torch.compiler.reset()  # or the numbers in the mask become symbols, which fail
    compiled = torch.compile(flex_attention, dynamic=False)
    blocks = block_mask(part)

    def both() -> Any:
        out = compiled(q, k, v, block_mask=blocks)
        return torch.autograd.grad(out, (q, k, v), upstream)

    try:
        return _measured("cuda", both, rounds)
    except (RuntimeError, torch.OutOfMemoryError) as error:
        return {"failed": str(error).splitlines()[0][:200]}


def block_mask(part: Part, device: str = "cuda") -> BlockMask:
    """The block mask of a part, from its pairs: no n x n matrix but for listed parts."""
    rows = part.rows()
    count = -(-part.n // BLOCK)
    pairs = rows.listeners() // BLOCK * count + rows.indices // BLOCK
    entries = np.bincount(pairs, minlength=count * count).reshape(count, count)
    full = entries == BLOCK * BLOCK
    some = (entries > 0) & ~full

    def lists(kept: np.ndarray) -> tuple[Tensor, Tensor]:
        order = np.argsort(~kept, axis=1, kind="stable")
        found = (kept.sum(1), order)
        numbers, indices = (torch.tensor(x.astype(np.int32))[None, None] for x in found)
        return numbers.to(device), indices.to(device)

    return BlockMask.from_kv_blocks(
        *lists(some), *lists(full), BLOCK_SIZE=BLOCK, mask_mod=_mask_mod(part, device)
    )


def _mask_mod(part: Part, device: str) -> MaskMod:
    """Whether a query attends to a key, as FlexAttention asks for it."""
    n = part.n
    match part:
        case patterns.Window(left=left, right=right):
            return lambda b, h, q, k: (k - q >= -left) & (k - q <= right)
        case patterns.Stride(width=w):
            return lambda b, h, q, k: (q - k) % w == 0
        case patterns.Segments(width=w):
            return lambda b, h, q, k: q // w == k // w
        case patterns.Columns(width=w):
            return lambda b, h, q, k: (q == k) | ((k + 1) % w == 0)
        case patterns.Star(width=w):
            return lambda b, h, q, k: (
                (q == n - 1)
                | (k == n - 1)
                | ((q - k).abs() <= w)
                | ((q - k).abs() >= n - 1 - w)
            )
        case patterns.Union(parts=(first, second)):
            one, two = _mask_mod(first, device), _mask_mod(second, device)
            return lambda b, h, q, k: one(b, h, q, k) | two(b, h, q, k)
        case _:
            listed = torch.zeros(n, n, dtype=torch.bool, device=device)
            rows = part.rows()
            query, key = (torch.tensor(x) for x in (rows.listeners(), rows.indices))
            listed[query.to(device), key.long().to(device)] = True
            return lambda b, h, q, k: listed[q, k]


def exponents(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Growth of time and memory with n, for every pattern and part; of ours."""
    found: dict[str, dict[str, float]] = {}
    mine = [row for row in rows if row["contender"] == "ours"]
    for name, kind in dict.fromkeys((row["pattern"], row["part"]) for row in mine):
        chosen = [row for row in mine if (row["pattern"], row["part"]) == (name, kind)]
        sizes = [row["n"] for row in chosen]
        names = ("gpu_ms", "cpu_ms", "queued_ms", "wall_ms", "peak_bytes")
        measures = [m for m in names if m in chosen[0]]
        found[f"{name}, {kind}"] = {
            "connections": exponent(sizes, [row["connections"] for row in chosen]),
            **{m: exponent(sizes, [row[m] for row in chosen]) for m in measures},
        }
    return found


def targets(rows: list[dict[str, Any]], measure: str | None = None) -> list[dict[str, Any]]:
    """How many times faster than the peers, at the longest: parts, unions, and layers.

    "SDPA" is the faster of its kernels.
    "sequential" is one layer for each part, as in the configuration of that name, against
    as many layers of the peer.
    """
    longest = max(row["n"] for row in rows)
    times: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        if row["n"] == longest and "failed" not in row and row["pattern"] != "dense":
            found = times.setdefault(row["pattern"], {}).setdefault(row["part"], {})
            found[row["contender"]] = row[measure or _measure(row)]
    dense = min(
        row[measure or _measure(row)]
        for row in rows
        if row["pattern"] == "dense" and "failed" not in row
    )
    for parts in times.values():
        single = [found for kind, found in parts.items() if kind != "Union"]
        for found in parts.values():
            found["SDPA"] = dense
        if len(single) > 1:
            names = set.intersection(*(set(found) for found in single))
            parts["sequential"] = {k: sum(found[k] for found in single) for k in names}
    return [
        {"pattern": name, "part": kind, "n": longest, "ours_ms": found["ours"]}
        | {peer: ms / found["ours"] for peer, ms in sorted(found.items()) if peer != "ours"}
        for name, parts in times.items()
        for kind, found in parts.items()
    ]


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal: milliseconds, MiB, and ratios to ours."""
    columns = {
        "n": "{n:,}",
        "pattern": "{pattern}",
        "part": "{part}",
        "contender": "{contender}",
        "ms": "{ms:.3f}",
        "queued ms": "{queued_ms:.3f}",
        "wall ms": "{wall_ms:.3f}",
        "peak MiB": "{peak_bytes:MiB.0f}",
        "to ours": "{ratio:.2f}",
    }
    rows: list[dict[str, Any]] = []
    ours: dict[tuple[Any, ...], float] = {}
    for row in report["rows"]:
        rows.append(row)
        if "failed" not in row:
            ms, case = row[_measure(row)], (row["n"], row["pattern"], row.get("part"))
            if row["contender"] == "ours":  # it comes first
                ours[case] = ms
            ratio = ms / ours[case] if case in ours else None
            rows[-1] = row | {"ms": ms, "ratio": ratio}
    title = f"Sparse attention, {report['heads']} heads of {SIZE}"
    left = ("pattern", "part", "contender")
    return table_of(title, rows, columns, left, head=4, longest=30)


@figures.styled
def picture(report: dict[str, Any], path: Path) -> None:
    """Time of ours against the length and, where it was measured, memory; logarithmic."""
    mine = [row for row in report["rows"] if row["contender"] == "ours"]
    kinds = list(dict.fromkeys((row["pattern"], row["part"]) for row in mine))
    measured = any("peak_bytes" in row for row in mine)
    figure = Figure(figsize=(10.5 if measured else 6.4, 4))
    panels = figure.subplots(1, 2 if measured else 1, squeeze=False)[0]
    for place, (name, kind) in enumerate(kinds):
        rows = [row for row in mine if (row["pattern"], row["part"]) == (name, kind)]
        n = [row["n"] for row in rows]
        times = [row[_measure(row)] for row in rows]
        look = figures.curve(place, len(kinds))
        panels[0].plot(n, times, label=f"{name}, {kind}", **look)
        if measured and all("peak_bytes" in row for row in rows):
            panels[1].plot(n, [row["peak_bytes"] / 2**20 for row in rows], **look)
    words = ("forward + backward, ms", "memory beyond the inputs, MiB")
    for axes, word in zip(panels, words, strict=False):
        figures.logarithmic(axes.xaxis, base=2)
        figures.tick_each(axes.xaxis, [row["n"] for row in mine])
        figures.logarithmic(axes.yaxis)
        axes.set(xlabel="n", ylabel=word)
    figures.one_legend(figure)
    figures.write(figure, path)
