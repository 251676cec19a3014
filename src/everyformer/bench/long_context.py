"""Where sparse attention pays: bytes of whole novels at n = 16,384 and beyond.

Arms differ in their attention alone (`long_model`): dense is PyTorch's own, by the kernel
that it chooses, the others are causal parts of sparse patterns. In this order: every
pattern against dense attention with a mask at n = 1,024; attention alone, forward and
backward; a whole step of training (bf16, compiled, fused AdamW), by the clock and by its
kernels, with memory; then every arm trains for the same time by the clock, and nats per
byte of held-out novels are drawn against it. On a CPU: tiny sizes, nothing compiled, to see
that all of it runs.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from everyformer import figures
from everyformer.bench.gate import gate_row, masked_attention
from everyformer.bench.kept import Kept, Row
from everyformer.bench.long_model import Arm, LongModel, Sizes, parameter_groups
from everyformer.bench.tables import table_of
from everyformer.bench.timing import (
    cpu_milliseconds,
    forget_memory,
    gpu_bytes,
    gpu_milliseconds,
    kernel_milliseconds,
    kernels_of,
    update_seconds,
)
from everyformer.data.packs.pack import pack_path, read_pack
from everyformer.errors import EveryformerError, InputError
from everyformer.ops import sparse_attention
from everyformer.patterns import Part
from everyformer.progress import Progress, no_progress
from everyformer.train.throughput import wait_for

PACK = "novels-bytes"
DENSE = Arm("dense", "dense (SDPA)")
ARMS = (
    DENSE,
    Arm("strided", "strided, w = 128, A1 and A2 in turn", "strided", (("width", 128),)),
    Arm("star", "window 256 and token 1", "window-global", (("half_width", 256),)),
)
"""The causal star keeps its relay where it is token 1: a window and one global token."""

MINUTES = 9.0
WARM_UP, DECAY, CLIP = 0.04, 0.1, 1.0
CURVE = 12
"""Points of a curve of training."""


@dataclass(frozen=True)
class RunSizes:
    """Sizes of a run.

    Attributes:
        sizes: Of the model.
        lengths: n of the timings; training is at the first.
        gate: n of the check.
        tokens: Of a step.
        seconds: Of training for each arm.
        windows: Held-out windows.
        rounds: Of timings.
        lr: Peak learning rate.
    """

    sizes: Sizes
    lengths: tuple[int, ...]
    gate: int
    tokens: int
    seconds: float
    windows: int
    rounds: int
    lr: float = 1.5e-3


ON_GPU = RunSizes(Sizes(), (16_384, 65_536), 1024, 65_536, 60.0, 16, 5)
QUICK_GPU = RunSizes(Sizes(), (16_384,), 1024, 65_536, 10.0, 4, 2)
ON_CPU = RunSizes(Sizes(32, 2, 16), (320,), 300, 320, 0.3, 1, 1)


@dataclass(frozen=True)
class Text:
    """Bytes to train on and held-out ones, and the name of their pack."""

    train: Tensor
    validation: Tensor
    name: str


def run(
    *,
    quick: bool = False,
    progress: Progress = no_progress,
    kept: Kept | None = None,
    only: Sequence[str] | None = None,
    minutes: float | None = None,
    data: Path | None = None,
) -> dict[str, Any]:
    """All rows: gate, attention, step and training of every arm.

    Args:
        quick: On a GPU one length and short training; on a CPU it changes nothing.
        progress: Told of each row.
        kept: Where rows are kept as soon as they are known.
        only: Names of arms; dense runs always.
        minutes: What has not begun by then is left out, 9 by default.
        data: Folder with the pack of novels; without it bytes of a made text are used, and
            nothing that is learnt from them means anything.

    Raises:
        InputError: If an arm has no such name.
        EveryformerError: If an arm is wrong: then nothing is timed.
    """
    arms = _chosen(only)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    plan = ON_CPU if device.type == "cpu" else QUICK_GPU if quick else ON_GPU
    kept = kept or Kept()
    ends = time.monotonic() + 60 * (MINUTES if minutes is None else minutes)
    text = _text(data, plan, device)
    stages: list[tuple[Row, float, Callable[[], Row]]] = []

    def add(stage: str, arm: Arm, n: int, needs: float, make: Callable[..., Row]) -> None:
        about = {"stage": stage, "arm": arm.name, "n": n}
        stages.append((about, needs, lambda: make(arm, n, plan, device)))

    for arm in arms[1:]:
        add("gate", arm, plan.gate, 0.0, _gate)
    for n in plan.lengths:
        for arm in arms:
            add("attention", arm, n, 0.0, _attention)
            add("step", arm, n, 0.0, _step)
    for arm in arms:
        about = {"stage": "training", "arm": arm.name, "n": plan.lengths[0]}
        about |= {"text": text.name, "seconds": plan.seconds}

        def train(arm: Arm = arm) -> Row:
            return _training(arm, plan.lengths[0], plan, device, text)

        stages.append((about, plan.seconds, train))
    rows: list[Row] = []
    for done, (about, needs, make) in enumerate(stages):
        progress(f"{about['stage']}, {about['arm']}, n = {about['n']}", done, len(stages))
        if time.monotonic() + needs > ends:
            rows.append(about | {"failed": "not begun: the time is over"})
            continue
        # Gates are not kept: what is resumed may run other code.
        gates = about["stage"] == "gate"
        rows.append(about | make() if gates else kept.row(about, make))
    return {
        "theme": "long-context",
        **kept.provenance,
        "model": {
            "dim": plan.sizes.dim,
            "layers": plan.sizes.layers,
            "heads": plan.sizes.dim // plan.sizes.head,
            "tokens_of_a_step": plan.tokens,
            "dtype": str(_dtype(device)).removeprefix("torch."),
            "compiled": device.type == "cuda",
            "optimiser": "AdamW, fused",
        },
        "arms": {arm.name: arm.about for arm in arms},
        "text": text.name,
        "rows": _compared(rows),
    }


def _chosen(only: Sequence[str] | None) -> list[Arm]:
    known = {arm.name: arm for arm in ARMS}
    unknown = [name for name in only or () if name not in known]
    if unknown:
        msg = f"{', '.join(unknown)} is not an arm. Choose among {', '.join(known)}."
        raise InputError(msg)
    return [arm for arm in ARMS if arm is DENSE or only is None or arm.name in only]


def _text(data: Path | None, plan: RunSizes, device: torch.device) -> Text:
    """The bytes of the pack, or made ones: places in a circle of words."""
    if data is not None:
        pack = read_pack(pack_path(data, PACK))
        train, held = (torch.tensor(pack.arrays[x]) for x in ("train", "validation"))
        return Text(train.to(device), held.to(device), pack.name)
    line = " ".join(f"the {k * k % 97}th house of street {k % 13}," for k in range(4000))
    made = torch.tensor(list(line.encode()), dtype=torch.uint8)
    made = made.repeat(1 + 4 * plan.lengths[0] * plan.windows // len(made))
    return Text(made.to(device), made.flip(0).to(device), "made")


def _dtype(device: torch.device) -> torch.dtype:
    """Of products and of the states between blocks; weights are float32."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _gate(arm: Arm, n: int, plan: RunSizes, device: torch.device) -> Row:
    """Every part against dense attention with its mask: outputs and gradients.

    Raises:
        EveryformerError: If one is wrong, or hears a later token.
    """
    pattern = arm.causal(n)
    if pattern is None:
        return {}
    dtype = _dtype(device)
    heads, d = plan.sizes.dim // plan.sizes.head, plan.sizes.head
    found: list[Row] = []
    for number, part in enumerate(pattern.parts):
        mask = torch.tensor(part.mask(), device=device)
        if bool(mask.triu(1).any()):
            msg = f"Part {number + 1} of {arm.name} hears later tokens: it is not timed."
            raise EveryformerError(msg)
        exact, ours = masked_attention(mask), partial(sparse_attention, part=part)
        torch.manual_seed(0)
        tensors = [torch.randn(2, heads, n, d, device=device, dtype=dtype) for _ in "qkvg"]
        about = {"part": number + 1, "connections": part.connections}
        found.append(gate_row(arm.name, about, tensors, ours, ("eager", exact), exact))
    return {"parts": found}


def _attention(arm: Arm, n: int, plan: RunSizes, device: torch.device) -> Row:
    """Forward and backward of one layer, the mean over the parts that take turns."""
    dtype = _dtype(device)
    heads, d = plan.sizes.dim // plan.sizes.head, plan.sizes.head
    shape = (1, heads, n, d)
    q, k, v, grad = (torch.randn(shape, device=device, dtype=dtype) for _ in range(4))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    causal = functional.scaled_dot_product_attention
    pattern = arm.causal(n)
    times: list[float] = []
    memory: list[int] = []
    kernels: list[str] = []
    for part in (None,) if pattern is None else pattern.parts:

        def call(part: Part | None = part) -> object:
            if part is None:
                out = causal(q, k, v, is_causal=True)
            else:
                out = sparse_attention(q, k, v, part)
            return torch.autograd.grad(out, leaves, grad)

        call()
        on_gpu = device.type == "cuda"
        clock = gpu_milliseconds if on_gpu else cpu_milliseconds
        times.append(clock(call, plan.rounds))
        if on_gpu:
            memory.append(gpu_bytes(call))
            kernels += [name for name in kernels_of(call) if name not in kernels]
    connections = n * (n + 1) // 2
    if pattern is not None:
        connections = round(statistics.mean(pattern.connections))
    return {
        "connections": connections,
        "ms_sampled": statistics.mean(times),
        "peak_bytes": max(memory, default=None),
        "kernel_names": kernels,
    }


class _Training:
    """A model, its optimiser, and one step of training."""

    def __init__(self, arm: Arm, n: int, plan: RunSizes, device: torch.device) -> None:
        self.device, self.plan, self.n = device, plan, n
        self.on_gpu = device.type == "cuda"
        self.model = LongModel(plan.sizes, arm, n, _dtype(device)).to(device)
        if self.on_gpu:
            torch.compiler.reset()
            self.model.compile_parts()
        self.batch = max(1, plan.tokens // n)
        self.random = torch.Generator(device).manual_seed(1)
        self.restart()

    def restart(self) -> None:
        """The weights and the draws of the beginning."""
        self.model.restart(0)
        self.random.manual_seed(1)
        self.lr = torch.tensor(self.plan.lr, device=self.device)
        groups = parameter_groups(self.model, DECAY)
        self.optimiser = torch.optim.AdamW(
            groups, lr=self.lr, betas=(0.9, 0.95), fused=self.on_gpu
        )

    def windows(self, text: Tensor) -> Tensor:
        """As many windows of n + 1 bytes as a step has, from random places."""
        most = len(text) - self.n
        begins = torch.randint(
            most, (self.batch, 1), generator=self.random, device=self.device
        )
        return text[begins + torch.arange(self.n + 1, device=self.device)]

    def loss(self, windows: Tensor) -> Tensor:
        """Nats per byte."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu):
            return self.model(windows)

    def step(self, windows: Tensor) -> Tensor:
        """One update."""
        loss = self.loss(windows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimiser.step()
        self.optimiser.zero_grad()
        return loss.detach()


def _step(arm: Arm, n: int, plan: RunSizes, device: torch.device) -> Row:
    """Median time of a step, tokens a second, and memory."""
    forget_memory(device)
    trained = _Training(arm, n, plan, device)
    text = torch.randint(256, (4 * n + 2,), device=device, dtype=torch.uint8)
    windows = trained.windows(text)
    began = time.monotonic()
    trained.step(windows)
    wait_for(device)
    first = time.monotonic() - began
    seconds = update_seconds(lambda: trained.step(windows), device, 2, 3, plan.rounds)
    peak = torch.cuda.max_memory_allocated() if trained.on_gpu else None
    kernels = (
        kernel_milliseconds(partial(trained.step, windows)) if trained.on_gpu else None
    )
    return {
        "batch": trained.batch,
        "parameters": sum(p.numel() for p in trained.model.parameters()),
        "first_step_s_sampled": first,
        "step_ms_sampled": 1e3 * seconds,
        "kernels_ms_sampled": kernels,
        "tokens_per_s_sampled": trained.batch * n / seconds,
        "peak_bytes": peak,
    }


def _training(arm: Arm, n: int, plan: RunSizes, device: torch.device, text: Text) -> Row:
    """Train by the clock: nats per byte of held-out text, without the time to measure it.

    The learning rate follows the share of the time that has passed, so that every arm ends
    its schedule with its time. Compilation is over before the clock begins.
    """
    forget_memory(device)
    trained = _Training(arm, n, plan, device)
    span = torch.arange(n + 1, device=device)
    apart = (len(text.validation) - n - 1) // max(plan.windows - 1, 1)
    held = [text.validation[k * apart + span][None] for k in range(plan.windows)]

    def measured() -> float:
        with torch.no_grad():
            return statistics.mean(float(trained.loss(one)) for one in held)

    trained.step(trained.windows(text.train))
    measured()
    trained.restart()
    wait_for(device)
    curve: list[dict[str, float]] = [{"seconds": 0.0, "steps": 0, "nats": measured()}]
    spent = now = 0.0
    steps = 0
    started = time.perf_counter()
    while spent < plan.seconds:
        trained.lr.fill_(plan.lr * _rate(now / plan.seconds))
        trained.step(trained.windows(text.train))
        steps += 1
        if steps % 4 == 0:
            wait_for(device)  # Python may not run ahead of the clock
        now = spent + time.perf_counter() - started
        if now >= plan.seconds * len(curve) / CURVE:
            wait_for(device)
            spent += time.perf_counter() - started
            curve.append({"seconds": spent, "steps": steps, "nats": measured()})
            wait_for(device)
            started = time.perf_counter()
    tokens = steps * trained.batch * n
    return {
        "steps": steps,
        "tokens": tokens,
        "tokens_per_s_sampled": tokens / curve[-1]["seconds"],
        "nats_per_byte_sampled": curve[-1]["nats"],
        "curve": curve,
        "peak_bytes": torch.cuda.max_memory_allocated() if trained.on_gpu else None,
    }


def _rate(share: float) -> float:
    """Rises to 1 in the first part of the time, then a cosine to a tenth."""
    if share < WARM_UP:
        return max(share / WARM_UP, 0.01)
    along = min(1.0, (share - WARM_UP) / (1 - WARM_UP))
    return 0.1 + 0.45 * (1 + math.cos(math.pi * along))


def _compared(rows: list[Row]) -> list[Row]:
    """How many times faster than dense each arm is, in attention and in a whole step."""
    dense = {(row["stage"], row["n"]): row for row in rows if row["arm"] == "dense"}
    for row in rows:
        other = dense.get((row["stage"], row["n"]), row)
        for name in ("ms_sampled", "step_ms_sampled"):
            if name in row and name in other and row is not other:
                row["times_dense_sampled"] = other[name] / row[name]
    return rows


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal."""
    model = report["model"]
    title = (
        f"Long context: {model['layers']} layers, width {model['dim']}, "
        f"{model['heads']} heads, {model['tokens_of_a_step']:,} tokens a step, "
        f"{model['dtype']}; text: {report['text']}"
    )
    columns = {
        "stage": "{stage}",
        "arm": "{arm}",
        "n": "{n:,}",
        "ms": "{ms_sampled:.2f}",
        "kernels ms": "{kernels_ms_sampled:.2f}",
        "times dense": "{times_dense_sampled:.2f}",
        "tokens/s": "{tokens_per_s_sampled:,.0f}",
        "GiB": "{peak_bytes:GiB.2f}",
        "nats/byte": "{nats_per_byte_sampled:.3f}",
    }
    rows = [{"ms_sampled": row.get("step_ms_sampled")} | row for row in report["rows"]]
    return table_of(title, rows, columns, left=("stage", "arm"), head=3)


@figures.styled
def picture(report: dict[str, Any], path: Path) -> None:
    """Nats per byte of held-out text against seconds of training, and against tokens."""
    rows = [row for row in report["rows"] if "curve" in row]
    figure = Figure(figsize=(10.5, 4))
    panels = figure.subplots(1, 2, squeeze=False)[0]
    for place, row in enumerate(rows):
        look = figures.curve(place, len(rows))
        points = row["curve"][1:]  # the untrained one is far above all others
        nats = [point["nats"] for point in points]
        share = row["tokens"] / max(row["steps"], 1) / 1e6
        seconds = [point["seconds"] for point in points]
        tokens = [share * point["steps"] for point in points]
        panels[0].plot(seconds, nats, label=report["arms"][row["arm"]], **look)
        panels[1].plot(tokens, nats, label=report["arms"][row["arm"]], **look)
    for axes, word in zip(panels, ("seconds of training", "million bytes"), strict=True):
        axes.set(xlabel=word, ylabel="nats per byte, held-out novels")
    figures.one_legend(figure)
    figures.write(figure, path)
