"""What mixers cost: one block of BERT_BASE with each, beside attention (Section 6).

Time forward, and forward and backward; operations of its matrix products; what the backward
pass needs of the forward pass; parameters. As many tokens at every length: 2,048 on a CPU,
in float32 on one thread, whose own time counts, and 65,536 on a GPU, where weights are
float32 and products bf16. Attention is that of PyTorch (`scaled_dot_product_attention`).
Each block is compared with itself in float64 first.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.table import Table
from torch import Tensor, nn

from everyformer import figures
from everyformer.bench.results import environment
from everyformer.bench.tables import table_of
from everyformer.bench.timing import (
    cpu_milliseconds,
    gpu_bytes,
    gpu_milliseconds,
    kernels_of,
)
from everyformer.errors import EveryformerError
from everyformer.layers.models.encoder_block import EncoderBlock, mixer_by_name
from everyformer.layers.models.encoder_config import BERT_BASE, MIXERS, EncoderConfig
from everyformer.layers.torch_options import TorchOptions
from everyformer.progress import Progress, no_progress
from everyformer.train.throughput import forward_flops

LENGTHS = (128, 512, 2048)
CPU_TOKENS, GPU_TOKENS, QUICK_TOKENS = 2_048, 65_536, 128
CPU_ROUNDS, GPU_ROUNDS = 2, 5
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest difference to float64, relative to the largest number."""

GATE_TOKENS = 100


def run(*, quick: bool = False, progress: Progress = no_progress) -> dict[str, Any]:
    """A row for each mixer and length."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lengths, tokens = LENGTHS, GPU_TOKENS if device == "cuda" else CPU_TOKENS
    if quick:
        lengths, tokens = (64,), QUICK_TOKENS
    report: dict[str, Any] = {"theme": "mixer-costs", "environment": environment()}
    report |= {"threads": 1, "tokens": tokens}
    report["dtype"] = str(_dtype(device))
    rows: list[dict[str, Any]] = []
    for done, n in enumerate(lengths):
        progress(f"mixers, n = {n:,}", done, len(lengths))
        rows += _measure(device, n, max(1, tokens // n), 1 if quick else None)
    return report | {"rows": rows}


def block_of(mixer: str, n: int, device: str = "cpu") -> EncoderBlock:
    """One block of BERT_BASE with that mixer, for sequences of n tokens."""
    config: EncoderConfig = replace(BERT_BASE, layers=1, max_len=n, mixers=mixer)
    options: TorchOptions = {"device": device, "dtype": None}
    return EncoderBlock(
        config, mixer_by_name(mixer, config, "none", False, options), options
    )


def gate(block: EncoderBlock, x: Tensor, mixer: str) -> float:
    """How far a block is from itself in float64.

    Raises:
        EveryformerError: If it is too far.
    """
    dtype = _dtype(x.device.type)
    with torch.no_grad():
        out = _called(block, x).double()
        exact = block.double()(x.double())
        block.float()
    error = float((out - exact).abs().max() / exact.abs().max())
    if not error <= TOLERANCE[dtype]:
        msg = (
            f"The block with {mixer} fails its gate and is not timed: it differs from "
            f"float64 by {error:.2g} of the largest number, more than {TOLERANCE[dtype]}."
        )
        raise EveryformerError(msg)
    return error


def saved_bytes(call: Callable[[], Tensor], parameters: list[nn.Parameter]) -> int:
    """Memory that the backward pass needs of the forward pass, parameters aside."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
        out = call()
    for parameter in parameters:
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(kept.values()) if out.requires_grad else 0


def _dtype(device: str) -> torch.dtype:
    return torch.bfloat16 if device == "cuda" else torch.float32


def _called(block: EncoderBlock, x: Tensor) -> Tensor:
    """In bf16 products on a GPU."""
    dtype = _dtype(x.device.type)
    with torch.autocast(x.device.type, dtype, enabled=dtype != torch.float32):
        return block(x)


def _measure(device: str, n: int, batch: int, rounds: int | None) -> list[dict[str, Any]]:
    """The rows of one length."""
    rows: list[dict[str, Any]] = []
    for mixer in MIXERS:
        torch.manual_seed(0)
        block = block_of(mixer, n, device)
        x = torch.randn(batch, n, BERT_BASE.dim, device=device)
        few = x[:1, : n if mixer == "bilinear" else GATE_TOKENS]
        row: dict[str, Any] = {"mixer": mixer, "n": n, "batch": batch}
        row["error_sampled"] = gate(block, few, mixer)
        parameters = list(block.parameters())
        row["parameters"] = sum(p.numel() for p in parameters)
        row["mixer_parameters"] = sum(p.numel() for p in block.mixer.parameters())
        row["flops"] = batch * forward_flops(block, n)
        leaf = x.requires_grad_()

        def forward(block: EncoderBlock = block, x: Tensor = leaf) -> Tensor:
            with torch.no_grad():
                return _called(block, x)

        def both(block: EncoderBlock = block, x: Tensor = leaf) -> Any:
            return torch.autograd.grad(_called(block, x).sum(), [x, *block.parameters()])

        def kept(block: EncoderBlock = block, x: Tensor = leaf) -> Tensor:
            return _called(block, x)

        row["saved_bytes"] = saved_bytes(kept, parameters)
        time, most = (
            (gpu_milliseconds, GPU_ROUNDS)
            if device == "cuda"
            else (cpu_milliseconds, CPU_ROUNDS)
        )
        if device == "cuda":
            row["peak_bytes"] = gpu_bytes(both)
            row["milliseconds_of_kernels"] = kernels_of(both)
        row["forward_ms"] = time(forward, rounds or most)
        row["both_ms"] = time(both, rounds or most)
        rows.append(row)
    return rows


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal; the last column is the ratio to attention."""
    columns = {
        "n": "{n:,}",
        "mixer": "{mixer}",
        "weights": "{parameters:mega.2f}M",
        "GFLOP": "{flops:giga,.1f}",
        "saved MiB": "{saved_bytes:MiB,.0f}",
        "forward ms": "{forward_ms:,.1f}",
        "both ms": "{both_ms:,.1f}",
        "ratio": "{ratio:.2f}",
    }
    rows, attention = list[dict[str, Any]](), 1.0
    for row in report["rows"]:
        attention = row["both_ms"] if row["mixer"] == "attention" else attention
        rows.append(row | {"ratio": row["both_ms"] / attention})
    title = f"One block of BERT_BASE, {report['tokens']:,} tokens"
    return table_of(title, rows, columns, left=["mixer"])


@figures.styled
def picture(report: dict[str, Any], path: Path) -> None:
    """Time and memory against the length, for as many tokens."""
    figure = Figure(figsize=(9.5, 3.6))
    left, right = figure.subplots(1, 2)
    lengths = list(dict.fromkeys(row["n"] for row in report["rows"]))
    for place, mixer in enumerate(MIXERS):
        rows = [row for row in report["rows"] if row["mixer"] == mixer]
        look = figures.curve(place, len(MIXERS))
        left.plot(lengths, [row["both_ms"] for row in rows], label=mixer, **look)
        kept = [row["saved_bytes"] / 2**20 for row in rows]
        right.plot(lengths, kept, label=mixer, **look)
    figures.title(left, f"forward + backward, {report['tokens']:,} tokens")
    figures.title(right, "kept for the backward pass")
    left.set_ylabel("ms")
    right.set_ylabel("MiB")
    for axes in (left, right):
        figures.logarithmic(axes.xaxis, base=2)
        figures.tick_each(axes.xaxis, lengths)
        figures.readable_ticks(axes.yaxis)
        axes.set(xlabel="n", ylim=(0, None))
    figures.one_legend(figure)
    figures.write(figure, path)
