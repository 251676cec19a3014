"""Training steps beside the rate of matrix products, measured in the same process.

Two models: the 3-layer encoder of the synthetic tasks (width 768, n = 128, URPE), and
BERT_BASE (n = 512), whose masked-LM head sees the 77 masked tokens of a sequence alone. A
step is forward, backward and a fused AdamW update, in bf16 products with float32 weights.
The share is that of operations in matrix products (`train.throughput`) per second in the
rate of one large product. On a CPU: tiny models, to see that all of it runs.
"""

import statistics
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from everyformer import figures
from everyformer.bench.results import environment
from everyformer.bench.tables import table_of
from everyformer.bench.timing import forget_memory
from everyformer.errors import EveryformerError
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import BERT_BASE, EncoderConfig
from everyformer.progress import Progress, no_progress
from everyformer.train.throughput import matrix_rate, training_flops, wait_for

SYNTHETIC = EncoderConfig(
    1001, 128, dim=768, layers=3, heads=12, ffn=3072, encoding="t5+urpe"
)
TINY = EncoderConfig(101, 32, dim=32, layers=2, heads=2, ffn=64)
MASKED_SHARE = 0.15
LEARNING_RATE = 1e-4
STEPS, WARM_UP = 20, 5
TIME_LIMIT = 130.0
"""Seconds after which no further contender begins."""

TOLERANCE = 0.02
"""Between the losses of the compiled and the plain model at the start, relatively."""

Step = Callable[[], Tensor]


@dataclass(frozen=True)
class Contender:
    """What is timed.

    Attributes:
        model: What to call it.
        config: Its sizes.
        batch: Sequences in a step.
        compiled: Whether by `torch.compile`, as a whole.
        backends: Kernels of PyTorch's attention, the preferred first; () leaves the choice.
    """

    model: str
    config: EncoderConfig
    batch: int
    compiled: bool = False
    backends: tuple[SDPBackend, ...] = ()

    @property
    def how(self) -> str:
        """The settings in words."""
        parts = ["compiled" if self.compiled else "eager"]
        parts += [backend.name.split("_")[0].lower() for backend in self.backends[:1]]
        return ", ".join(parts)

    def kernels(self) -> AbstractContextManager[Any]:
        """Restricts PyTorch's attention to the backends."""
        if not self.backends:
            return nullcontext()
        return sdpa_kernel(list(self.backends), set_priority=True)


FLASH = (SDPBackend.FLASH_ATTENTION,)
CUDNN = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
ON_GPU = (
    Contender("BERT_BASE", BERT_BASE, 128, compiled=True, backends=CUDNN),
    Contender("3 layers, URPE", SYNTHETIC, 256, compiled=True),
    Contender("BERT_BASE", BERT_BASE, 128, compiled=True, backends=FLASH),
    Contender("BERT_BASE", BERT_BASE, 64, backends=FLASH),
)
ON_CPU = (
    Contender("tiny", TINY, 4),
    Contender("tiny, URPE", replace(TINY, encoding="t5+urpe"), 4),
)


def run(*, quick: bool = False, progress: Progress = no_progress) -> dict[str, Any]:
    """Every contender: step time, operations per second, share of the matrix rate."""
    started = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # Without units for bf16, a CPU runs it many times slower than float32.
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    rate = matrix_rate(device, dtype)
    report: dict[str, Any] = {"theme": "training", "environment": environment()}
    rows: list[dict[str, Any]] = []
    found = ON_GPU if device.type == "cuda" else ON_CPU
    for done, contender in enumerate(found[:1] if quick else found):
        progress(f"training, {contender.model}, {contender.how}", done, len(found))
        row = {
            "model": contender.model, "how": contender.how, "batch": contender.batch,
            "n": contender.config.max_len,
        }  # fmt: skip
        if time.monotonic() - started > TIME_LIMIT:
            rows.append(row | {"failed": "not begun: the time limit"})
            continue
        with _cleared(device), contender.kernels():
            try:
                rows.append(row | _measure(contender, device, rate))
            except (RuntimeError, EveryformerError) as error:
                rows.append(row | {"failed": str(error).splitlines()[0][:200]})
    return report | {"matrix_rate_sampled": rate, "dtype": str(dtype), "rows": rows}


class MaskedTokens(nn.Module):
    """The mean cross-entropy of some tokens; the others pay for no logits."""

    def __init__(self, encoder: Encoder) -> None:
        """An encoder with a head."""
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: Tensor, chosen: Tensor, labels: Tensor) -> Tensor:
        """Tokens (b, n), and numbers of chosen tokens in the flat batch with labels."""
        states = self.encoder.states(tokens).flatten(0, 1)[chosen]
        head = self.encoder.head
        if head is None:
            msg = "The encoder has no head to train. Set head='tied' in its config."
            raise EveryformerError(msg)
        return functional.cross_entropy(head(states).float(), labels)


def _measure(contender: Contender, device: torch.device, rate: float) -> dict[str, Any]:
    """One row; refuses a compiled model whose loss is not that of the plain one."""
    torch.manual_seed(0)
    config, batch, n = contender.config, contender.batch, contender.config.max_len
    objective = MaskedTokens(Encoder(config, device=device))
    masked = n if contender.config.encoding != "ape" else round(MASKED_SHARE * n)
    inputs = _inputs(config, batch, masked, device)
    casts = device.type == "cuda"
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=casts):
        plain = float(objective(*inputs))
    optimiser = torch.optim.AdamW(objective.parameters(), lr=LEARNING_RATE, fused=casts)
    called = torch.compile(objective) if contender.compiled else objective

    def step() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=casts):
            loss = called(*inputs)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return loss

    began = time.monotonic()
    first = float(step().detach())
    first_step_s = time.monotonic() - began
    if not abs(first - plain) <= TOLERANCE * abs(plain):
        msg = (
            f"{contender.how} gives the loss {first}, the plain model {plain}: it is not "
            "timed."
        )
        raise EveryformerError(msg)
    seconds = statistics.median(_step_seconds(step, device))
    flops = batch * training_flops(objective, n, head_tokens=masked)
    return {
        "step_ms_sampled": 1e3 * seconds,
        "first_step_s_sampled": first_step_s,
        "flops": flops,
        "flops_per_s_sampled": flops / seconds,
        "share_sampled": flops / seconds / rate,
        "tokens_per_s_sampled": batch * n / seconds,
        "parameters": sum(p.numel() for p in objective.parameters()),
        "loss_plain_sampled": plain,
        "loss_sampled": first,
        "peak_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
    }


def _inputs(
    config: EncoderConfig, batch: int, masked: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Random tokens, the numbers of the masked ones, and their labels."""
    n = config.max_len
    tokens = torch.randint(config.vocab_size, (batch, n), device=device)
    places = torch.rand(batch, n, device=device).argsort(-1)[:, :masked].sort(-1).values
    chosen = (places + n * torch.arange(batch, device=device)[:, None]).flatten()
    return tokens, chosen, torch.randint(config.vocab_size, (len(chosen),), device=device)


def _step_seconds(step: Step, device: torch.device) -> list[float]:
    """Times of steps, one by one, after some that do not count."""
    steps = STEPS if device.type == "cuda" else 3
    times: list[float] = []
    for turn in range(WARM_UP + steps):
        wait_for(device)
        started = time.perf_counter()
        step()
        wait_for(device)
        if turn >= WARM_UP:
            times.append(time.perf_counter() - started)
    return times


@contextmanager
def _cleared(device: torch.device) -> Generator[None, None, None]:
    """Nothing compiled and no memory held, before and after."""
    torch.compiler.reset()
    forget_memory(device)
    yield
    torch.compiler.reset()


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal."""
    columns = {
        "model": "{model}",
        "how": "{how}",
        "batch x n": "{batch} x {n}",
        "step ms": "{step_ms_sampled:.1f}",
        "TFLOP/s": "{flops_per_s_sampled:tera.4g}",
        "share": "{share_sampled:.1%}",
        "tokens/s": "{tokens_per_s_sampled:,.0f}",
    }
    rate = report["matrix_rate_sampled"] / 1e12
    title = f"Training; one large product runs at {rate:.4g} TFLOP/s"
    return table_of(title, report["rows"], columns, ("model", "how"), head=3, longest=30)


@figures.styled
def picture(report: dict[str, Any], path: Path) -> None:
    """The share of the matrix rate that each contender reaches."""
    rows = [row for row in report["rows"] if "share_sampled" in row]
    figure = Figure(figsize=(7.6, 0.5 * len(rows) + 1.2))
    axes = figure.subplots()
    names = [f"{row['model']}, {row['how']}, {row['batch']} x {row['n']}" for row in rows]
    bars = axes.barh(names, [100 * row["share_sampled"] for row in rows], height=0.6)
    axes.bar_label(bars, fmt="%.0f %%", padding=3)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("per cent of the rate of one large product")
    figures.write(figure, path)
