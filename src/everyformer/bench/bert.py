"""A BERT in pre-training: our whole update beside Hugging Face's model, in one process.

Masked tokens and next sentences at n = 128, 256 windows in an update, bf16 products with
float32 weights, clipping and a fused AdamW. Ours is the trainer of `everyformer.train`:
blocks and head compiled, all of it replayed as one CUDA graph, the head on the 19 masked
tokens of a window. Theirs is `BertForPreTraining` of the same sizes by `torch.compile` as a
whole, once as it is, with its head on all positions, and on the masked ones alone, also
with PyTorch's own CUDA graphs (mode "reduce-overhead"). Its batches are made before the
clock starts, and its attention gets no mask, as nothing is padded: compiled as a whole,
transformers 5.17 makes one of all pairs, which keeps flash attention away.

Before the clock: the gradient of the compiled update against float32 without any compiled
part. The share is that of the operations that the task needs (products, the head on masked
tokens, `train.throughput`) per second in the rate of one large product. On a CPU: a tiny
model and nothing compiled, to see that all of it runs.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import cycle
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from everyformer.bench.results import environment
from everyformer.bench.tables import table_of
from everyformer.bench.timing import forget_memory, kernels_of, update_seconds
from everyformer.data.batch import Batch, Draw
from everyformer.data.randomness import Split, random_integers
from everyformer.data.task import FreshTask
from everyformer.errors import EveryformerError
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import BERT_BASE, EncoderConfig
from everyformer.progress import Progress, no_progress
from everyformer.train.config import TrainConfig
from everyformer.train.objectives.masked import MaskedLanguage
from everyformer.train.processes import accelerator
from everyformer.train.throughput import matrix_rate, training_flops, wait_for
from everyformer.train.trainer import Trainer

NARROW = EncoderConfig(
    30522, 128, dim=384, layers=12, heads=6, ffn=1536, norm="pre", segments=2, pooler=True
)
BASE = replace(BERT_BASE, max_len=128, pooler=True)
TINY = replace(NARROW, vocab_size=101, max_len=16, dim=32, layers=2, heads=2, ffn=64)
MASKED_SHARE = 0.15
CLIP, LEARNING_RATE = 1.0, 1e-4
WARM_UP, IN_A_ROW, ROUNDS = 6, 10, 5
BATCHES = 8
"""Made before the clock starts, for the peers, which take them in turn."""

TIME_LIMIT = 240.0
"""Seconds after which no further contender begins."""

TOLERANCE = 0.05
"""Between the gradients of the compiled update and of float32, as a share of the latter."""

Step = Callable[[], Any]


@dataclass(frozen=True)
class Contender:
    """What is timed.

    Attributes:
        model: What to call the sizes.
        config: The sizes.
        how: "ours", or "hf" with the head on "masked" or "all" tokens, maybe with "graphs".
        batch: Windows in an update.
        settings: Of our `TrainConfig`.
    """

    model: str
    config: EncoderConfig
    how: str
    batch: int = 256
    settings: dict[str, Any] = field(default_factory=dict)


FAST: dict[str, Any] = {"compile": True, "record": True, "precision": "bf16"}
CUDNN = FAST | {"cudnn": True}
ON_GPU = (
    Contender("12 x 384", NARROW, "ours", settings=FAST),
    Contender("12 x 384", NARROW, "ours, cuDNN", settings=CUDNN),
    Contender("12 x 384", NARROW, "hf, masked"),
    Contender("12 x 384", NARROW, "hf, masked, graphs"),
    Contender("12 x 384", NARROW, "hf, all"),
    Contender("BERT_BASE", BASE, "ours, cuDNN", settings=CUDNN),
    Contender("BERT_BASE", BASE, "hf, masked"),
    Contender("BERT_BASE", BASE, "hf, masked, graphs"),
    Contender("BERT_BASE", BASE, "hf, all"),
)
ON_CPU = (
    Contender("tiny", TINY, "ours", 4),
    Contender("tiny", TINY, "hf, masked", 4),
    Contender("tiny", TINY, "hf, all", 4),
)


@dataclass(frozen=True)
class RandomWindows(FreshTask):
    """Windows of random tokens, made on the device in every update."""

    config: EncoderConfig

    @property
    def length(self) -> int:
        """n, the number of tokens of a window."""
        return self.config.max_len

    @property
    def masked(self) -> int:
        """Masked tokens of a window."""
        return round(MASKED_SHARE * self.length)

    def batch(self, split: Split, draw: Draw) -> Batch:
        """Two segments of equal length, and masked tokens at random places."""
        n, m = draw.length, self.masked
        rows = random_integers(self.config.vocab_size, 0, split, draw.numbers, n + m + 1)
        order = random_integers(1 << 20, 1, split, draw.numbers, n).argsort(-1)
        halves = torch.arange(n, device=rows.device) >= n // 2
        return Batch(
            tokens=rows[:, :n],
            labels=rows[:, n : n + m],
            weights=torch.ones(len(rows), m, device=rows.device),
            segments=halves.long().expand(len(rows), n),
            places=order[:, :m],
            next_labels=rows[:, -1] % 2,
        )

    def describe(self) -> dict[str, Any]:
        """What a result file says of this task: its name."""
        return {"name": "random windows"}


def run(
    *, quick: bool = False, progress: Progress = no_progress, profile: bool = False
) -> dict[str, Any]:
    """Every contender: update time, share of the matrix rate, tokens a second and ratios.

    Args:
        quick: The first contender alone.
        progress: Told of each contender.
        profile: Whether to add the 15 kernels that take most of our first update.
    """
    started = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    rate = matrix_rate(device, dtype)
    found = ON_GPU if device.type == "cuda" else ON_CPU
    rows: list[dict[str, Any]] = []
    told: str | None = None
    for done, contender in enumerate(found[:1] if quick else found):
        progress(f"{contender.model}, {contender.how}", done, len(found))
        row: dict[str, Any] = {
            "model": contender.model, "how": contender.how, "batch": contender.batch,
            "n": contender.config.max_len,
        }  # fmt: skip
        if time.monotonic() - started > TIME_LIMIT:
            rows.append(row | {"failed": "not begun: the time limit"})
            continue
        forget_memory(device)
        try:
            step, first = (_ours if contender.how.startswith("ours") else _theirs)(
                contender, device
            )
            rows.append(row | first | _timed(contender, step, device, rate))
            if profile and told is None:
                told = _profiled(step, device)
        except (RuntimeError, ImportError, EveryformerError) as error:
            rows.append(row | {"failed": str(error).splitlines()[0][:300]})
    report: dict[str, Any] = {"theme": "bert", "environment": environment()}
    report |= {"matrix_rate_sampled": rate, "dtype": str(dtype), "rows": _compared(rows)}
    return report | {"wall_s": time.monotonic() - started, "profile": told}


def _ours(contender: Contender, device: torch.device) -> tuple[Step, dict[str, Any]]:
    """The update of our trainer, after its gradient has been found right."""
    task = RandomWindows(contender.config)
    config = TrainConfig(
        steps=10**6, batch=contender.batch, lr=LEARNING_RATE, warmup=100, clip=CLIP,
        weight_decay=0.01, decay_biases=False, **contender.settings,
    )  # fmt: skip

    def build() -> MaskedLanguage:
        return MaskedLanguage(Encoder(contender.config))

    trainer = Trainer(build, task, config, accelerator())
    began = time.monotonic()
    error = gradient_error(trainer)
    if not error <= TOLERANCE:
        msg = (
            f"The gradient of the update differs by {error:.3g} of its length from that of "
            f"float32, more than {TOLERANCE}: it is not timed."
        )
        raise EveryformerError(msg)
    means = trainer.global_means(trainer.update())
    return trainer.update, {
        "gradient_error_sampled": error,
        "loss_sampled": means["loss"],
        "first_step_s_sampled": time.monotonic() - began,
    }


def gradient_error(trainer: Trainer) -> float:
    """|g - g_32| / |g_32| for the first update, all parameters together."""
    draw = trainer.task.draw(0, trainer.config.batch, 0, 1, trainer.device)
    batch = trainer.task.batch("train", draw)
    objective = trainer.objective

    def gradient() -> list[Tensor]:
        objective.zero_grad()
        (objective(batch) / objective.weights(batch)).sum().backward()
        found = [p.grad for p in objective.parameters() if p.grad is not None]
        objective.zero_grad()
        return found

    with torch.compiler.set_stance("force_eager"):
        wanted = gradient()
    with trainer.kernels():
        found = gradient()
    far = sum(float((a - b).square().sum()) for a, b in zip(found, wanted, strict=True))
    return (far / sum(float(b.square().sum()) for b in wanted)) ** 0.5


def _places(batch: Batch) -> tuple[Tensor, Tensor]:
    """Of masked tokens, and the labels of pairs."""
    if batch.places is None or batch.next_labels is None:
        msg = "A BERT is trained with masked tokens and pairs of texts. Give both."
        raise EveryformerError(msg)
    return batch.places, batch.next_labels


class MaskedHead(nn.Module):
    """Hugging Face's model, its head on the masked tokens alone."""

    def __init__(self, model: Any) -> None:
        """A `BertForPreTraining`."""
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        """The loss: both means, added."""
        out = self.model.bert(input_ids=batch.tokens, token_type_ids=batch.segments)
        states, (places, next_labels) = out.last_hidden_state, _places(batch)
        chosen = states.gather(1, places[..., None].expand(-1, -1, states.shape[-1]))
        logits = self.model.cls.predictions(chosen).flatten(0, 1).float()
        told = self.model.cls.seq_relationship(out.pooler_output).float()
        masked = functional.cross_entropy(logits, batch.labels.flatten())
        return masked + functional.cross_entropy(told, next_labels)


class WholeHead(nn.Module):
    """Hugging Face's model as it is; labels of other tokens are ignored by its loss."""

    def __init__(self, model: Any) -> None:
        """A `BertForPreTraining`."""
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        """The loss that the model gives."""
        places, next_labels = _places(batch)
        labels = torch.full_like(batch.tokens, -100).scatter(1, places, batch.labels)
        return self.model(
            input_ids=batch.tokens, token_type_ids=batch.segments, labels=labels,
            next_sentence_label=next_labels,
        ).loss  # fmt: skip


def _no_masks(**_: Any) -> tuple[None, None]:
    """What a BERT without padding hands to its attention."""
    return None, None


def their_model(contender: Contender) -> MaskedHead | WholeHead:
    """Hugging Face's model with random weights; the output is its loss."""
    from transformers import BertConfig, BertForPreTraining

    sizes = contender.config
    torch.manual_seed(0)
    made: Any = BertConfig(
        vocab_size=sizes.vocab_size, hidden_size=sizes.dim, num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads, intermediate_size=sizes.ffn,
        max_position_embeddings=sizes.max_len, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model: Any = BertForPreTraining(made)
    model.bert._create_attention_masks = _no_masks
    return (WholeHead if contender.how == "hf, all" else MaskedHead)(model)


def _theirs(contender: Contender, device: torch.device) -> tuple[Step, dict[str, Any]]:
    """An update of Hugging Face's model, by a plain loop and `torch.compile`.

    Raises:
        EveryformerError: If transformers is not installed.
    """
    if find_spec("transformers") is None:
        raise EveryformerError("transformers is not installed")
    task = RandomWindows(contender.config)
    wrapped = their_model(contender).to(device).train()
    casts = device.type == "cuda"
    mode = "reduce-overhead" if contender.how.endswith("graphs") else None
    called: Any = torch.compile(wrapped, dynamic=False, mode=mode) if casts else wrapped
    optimiser = torch.optim.AdamW(
        wrapped.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=casts
    )
    draws = [task.draw(turn, contender.batch, 0, 1, device) for turn in range(BATCHES)]
    batches = cycle([task.batch("train", draw) for draw in draws])

    def step() -> Tensor:
        batch = next(batches)
        with torch.autocast(device.type, torch.bfloat16, enabled=casts):
            loss = called(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(wrapped.parameters(), CLIP)
        optimiser.step()
        optimiser.zero_grad()
        return loss.detach()

    began = time.monotonic()
    first = float(step())
    return step, {
        "loss_sampled": first, "first_step_s_sampled": time.monotonic() - began,
        "parameters": sum(p.numel() for p in wrapped.parameters()),
    }  # fmt: skip


def _timed(
    contender: Contender, step: Step, device: torch.device, rate: float
) -> dict[str, Any]:
    """Median time of an update, and what follows from it."""
    on_gpu, config = device.type == "cuda", contender.config
    often = (WARM_UP, IN_A_ROW, ROUNDS) if on_gpu else (1, 1, 3)
    seconds = update_seconds(step, device, *often)
    counted = MaskedLanguage(Encoder(config, device="meta"))
    masked = RandomWindows(config).masked
    flops = contender.batch * training_flops(counted, config.max_len, masked)
    return {
        "step_ms_sampled": 1e3 * seconds,
        "flops": flops,
        "share_sampled": flops / seconds / rate,
        "tokens_per_s_sampled": contender.batch * config.max_len / seconds,
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "milliseconds_of_kernels": kernels_of(step) if on_gpu else {},
    }


def _compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tokens a second of our best row of each size, over those of the others."""
    for row in rows:
        ours = [
            other["tokens_per_s_sampled"]
            for other in rows
            if other["model"] == row["model"] and other["how"].startswith("ours")
            and "failed" not in other
        ]  # fmt: skip
        if ours and "failed" not in row and not row["how"].startswith("ours"):
            row["ours_over_theirs_sampled"] = max(ours) / row["tokens_per_s_sampled"]
    return rows


def _profiled(step: Step, device: torch.device) -> str:
    """The kernels that take most of three updates."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = device.type == "cuda"
    kinds = [ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    with profile(activities=kinds, acc_events=True) as found:
        for _ in range(3):
            step()
        wait_for(device)
    by = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    return found.key_averages().table(sort_by=by, row_limit=15, max_name_column_width=90)


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal."""
    columns = {
        "model": "{model}",
        "how": "{how}",
        "batch x n": "{batch} x {n}",
        "update ms": "{step_ms_sampled:.2f}",
        "share": "{share_sampled:.1%}",
        "tokens/s": "{tokens_per_s_sampled:,.0f}",
        "ours/theirs": "{ours_over_theirs_sampled:.2f}",
    }
    rate = report["matrix_rate_sampled"] / 1e12
    title = f"BERT; one large product runs at {rate:.4g} TFLOP/s"
    return table_of(title, report["rows"], columns, ("model", "how"), head=3, longest=60)
