"""Transformer-XL in training: our whole update beside public code, in one process.

Segments of n words and a memory of as many, with dropout, clipping and Adam, in bf16
products with float32 weights on a GPU. Ours is the trainer of `everyformer.train`: blocks
and head compiled, all of it, memory included, replayed as one CUDA graph. The peer is
Transformer-XL as public code has it (`xl_peer`), with PyTorch's own fused optimiser, as it
is and by `torch.compile`. Before the clock both get the same weights, and their losses on
two segments, the second with a memory, must agree. On a CPU: a tiny model and nothing
compiled, to see that all of it runs.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import nn

from everyformer.bench.results import environment
from everyformer.bench.tables import table_of
from everyformer.bench.timing import kernels_of, update_seconds
from everyformer.bench.xl_peer import PeerModel, copy_weights
from everyformer.data.batch import Batch
from everyformer.data.packs.pack import Pack, new_pack
from everyformer.data.packs.reading import EOS, UNK
from everyformer.data.streams import Reading, Streams
from everyformer.errors import EveryformerError
from everyformer.layers.models.transformer_xl import TransformerXLConfig, TransformerXLModel
from everyformer.progress import Progress, no_progress
from everyformer.train.config import TrainConfig
from everyformer.train.objectives.next_word import NextWord
from everyformer.train.processes import accelerator
from everyformer.train.trainer import Trainer

REDUCED = TransformerXLConfig(
    vocab_size=33_280, max_len=256, dim=384, layers=8, heads=6, head_dim=64, ffn=1920
)
BASE = TransformerXLConfig(vocab_size=33_280, max_len=300)
TINY = replace(
    REDUCED, vocab_size=101, max_len=32, dim=32, layers=2, heads=2, head_dim=16, ffn=64
)
CLIP, LEARNING_RATE = 0.25, 2.5e-4
WARM_UP, IN_A_ROW, ROUNDS = 6, 10, 5
TOKENS = 400_000
TIME_LIMIT = 300.0
"""Seconds after which no further contender begins."""

TOLERANCE = 1e-9
"""Between the losses of ours and of the peer in float64, relatively."""

FAST: dict[str, Any] = {"compile": True, "record": True, "precision": "bf16"}
Step = Callable[[], Any]


@dataclass(frozen=True)
class Contender:
    """What is timed.

    Attributes:
        model: What to call the sizes.
        config: The sizes.
        how: "ours", "ours + URPE", "eager peer", or "compiled peer".
        batch: Streams.
        settings: Of our `TrainConfig`.
    """

    model: str
    config: TransformerXLConfig
    how: str
    batch: int
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Tokens of a segment, and of the memory."""
        return self.config.max_len // 2

    @property
    def is_peer(self) -> bool:
        """Whether it is public code."""
        return self.how.endswith("peer")


def _quartet(
    model: str, config: TransformerXLConfig, batch: int, settings: dict[str, Any]
) -> tuple[Contender, ...]:
    gained = replace(config, gain="shared")
    return (
        Contender(model, config, "ours", batch, settings),
        Contender(model, gained, "ours + URPE", batch, settings),
        Contender(model, config, "eager peer", batch),
        Contender(model, config, "compiled peer", batch),
    )


ON_GPU = (*_quartet("8 x 384", REDUCED, 64, FAST), *_quartet("16 x 410", BASE, 60, FAST))
ON_CPU = _quartet("tiny", TINY, 4, {})[:3]


def run(*, quick: bool = False, progress: Progress = no_progress) -> dict[str, Any]:
    """Every contender: milliseconds of an update, words a second, and ratios.

    Args:
        quick: One size alone.
        progress: Told of each contender.
    """
    started = time.monotonic()
    device = accelerator().device
    found = ON_GPU if device.type == "cuda" else ON_CPU
    report: dict[str, Any] = {"theme": "xl", "environment": environment()}
    rows: list[dict[str, Any]] = []
    for done, one in enumerate(found[:4] if quick else found):
        progress(f"Transformer-XL, {one.model}, {one.how}", done, len(found))
        row: dict[str, Any] = {
            "model": one.model, "how": one.how, "batch": one.batch, "n": one.length,
        }  # fmt: skip
        if time.monotonic() - started > TIME_LIMIT:
            rows.append(row | {"failed": "not begun: the time limit"})
            continue
        try:
            row["error_sampled"] = gate(one, device)
            often = (WARM_UP, IN_A_ROW) if device.type == "cuda" else (2, 2)
            step, rounds = _step(one, device), 1 if quick else ROUNDS
            seconds = update_seconds(step, device, *often, rounds)
            words = one.batch * one.length / seconds
            row |= {"update_ms": 1e3 * seconds, "words_per_second": words}
            if device.type == "cuda":
                row["milliseconds_of_kernels"] = kernels_of(step)
            rows.append(row)
        except (RuntimeError, EveryformerError) as error:
            rows.append(row | {"failed": str(error).splitlines()[0][:200]})
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return report | {"rows": _with_ratios(rows)}


def task_of(one: Contender) -> Streams:
    """Streams of random words."""
    return Streams(
        _random_pack(one.config.vocab_size), one.batch, one.length, 0,
        (Reading("nats", one.length, one.length),),
    )  # fmt: skip


def objective_of(one: Contender) -> NextWord:
    """Ours, with its memory."""
    readings = (Reading("nats", one.length, one.length),)
    model = TransformerXLModel(one.config)
    return NextWord(model, streams=one.batch, places=one.length, readings=readings)


def gate(one: Contender, device: torch.device) -> float:
    """How far our losses are from those of the peer, in float64, over two segments.

    Raises:
        EveryformerError: If they are too far.
    """
    few = replace(
        one, batch=2, config=replace(one.config, dropout=0.0, layers=2, gain="none")
    )
    torch.manual_seed(0)
    ours = objective_of(few).to(device).double()
    peer = PeerModel(few.config, few.length).to(device).double()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    copy_weights(ours.encoder, peer)
    task, mems = task_of(few), None
    apart: list[float] = []
    with torch.no_grad():
        for step in range(2):
            batch = task.batch("train", task.draw(step, 2, 0, 1, device))
            mine = ours(batch).item()
            theirs, mems = peer(batch.tokens.T, batch.labels.T, mems)
            total = theirs.sum().item()
            apart.append(abs(mine - total) / total)
    far = max(apart)
    if not all(one <= TOLERANCE for one in apart):  # NaN is in no order
        msg = (
            f"{one.how} of {one.model} fails its gate and is not timed: losses differ from "
            f"the peer's by {far:.2g}, more than {TOLERANCE}."
        )
        raise EveryformerError(msg)
    return far


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal."""
    columns = {
        "model": "{model}",
        "how": "{how}",
        "batch x n": "{batch} x {n}",
        "update ms": "{update_ms:,.2f}",
        "words/s": "{words_per_second:,.0f}",
        "ours is faster by": "{ratio_sampled:.2f}",
    }
    title = "Updates of Transformer-XL"
    return table_of(title, report["rows"], columns, left=("model", "how"), head=3)


def _step(one: Contender, device: torch.device) -> Step:
    """One whole update."""
    task = task_of(one)
    if not one.is_peer:
        config = TrainConfig(
            steps=10_000, batch=one.batch, lr=LEARNING_RATE, clip=CLIP, **one.settings
        )
        return Trainer(lambda: objective_of(one), task, config, accelerator()).update
    torch.manual_seed(0)
    model = PeerModel(one.config, one.length).to(device)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    half = device.type == "cuda"
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=half)
    if one.how == "compiled peer":
        model.compile(dynamic=False)
    mems, count = None, 0

    def update() -> None:
        nonlocal mems, count
        batch: Batch = task.batch("train", task.draw(count, one.batch, 0, 1, device))
        count += 1
        optimiser.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            losses, mems = model(batch.tokens.T, batch.labels.T, mems)
        losses.float().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()

    return update


def _with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the peer's time to that of ours, for each size."""
    times = {(r["model"], r["how"]): r["update_ms"] for r in rows if "update_ms" in r}
    for row in rows:
        ours = times.get((row["model"], "ours"))
        if row["how"].endswith("peer") and ours is not None and "update_ms" in row:
            row["ratio_sampled"] = row["update_ms"] / ours
    return rows


def _random_pack(vocabulary: int) -> Pack:
    generator = np.random.default_rng(0)
    text = generator.integers(2, vocabulary, TOKENS).astype(np.uint16)
    arrays = {"train": text, "validation": text[:1000], "test": text[:1000]}
    starts = {f"{split}_articles": np.zeros(1, np.int32) for split in arrays}
    specials = {UNK: 0, EOS: 1}
    tokeniser = {"sha256": "0" * 64, "vocabulary": vocabulary, "specials": specials}
    header = {
        "name": "random", "licence": "", "sources": {}, "counts": {},
        "tokeniser": tokeniser,
    }  # fmt: skip
    return new_pack(header, arrays | starts)
