"""Models people have, in training: transformers beside the same model with `speed_up`.

Real sizes with random weights in bf16, without dropout; a step is forward, loss, backward
and a fused AdamW, by the wall clock. Contenders: transformers eager, with SDPA where it has
it, and both with each block compiled; ours, and ours compiled the same way. T5 predicts
n / 4 tokens. SDPA gets the bias of T5 with the keys innermost, as its fused kernels need it
and as transformers 5.22 gives it; 5.17 had the heads innermost, and SDPA ran in float32.
"kernels ms" is what the GPU works on a step: the clock shows more if it waits for Python.
"captured ms" is the clock again for the same step replayed from a CUDA graph
(`everyformer.train.recorded`).
Beside times and peak memory: the longest sequence with which a step fits into memory,
found by doubling.

Before the clock, at full depth: logits and gradients in bf16 of both beside float32 by
transformers; ours may err by half more than theirs. On a CPU: tiny models in float32,
nothing compiled, to see that all of it runs.
"""

import copy
import gc
import statistics
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from everyformer.bench.kept import Kept
from everyformer.bench.model_configs import (
    MODELS,
    batch_of,
    blocks_of,
    build,
    class_of,
)
from everyformer.bench.results import seconds_of
from everyformer.bench.tables import table_of
from everyformer.bench.timing import kernels_of
from everyformer.errors import EveryformerError, InputError
from everyformer.layers.hugging_face import restore, speed_up
from everyformer.progress import Progress, no_progress
from everyformer.train.recorded import WARM_UP as RECORDED_FROM
from everyformer.train.recorded import Recorded

TOKENS = 2**14
"""In a step, in all sequences together."""

GPU_LENGTHS, CPU_LENGTHS = (2048, 512), (64,)
GATE_LENGTH, GATE_ROOM = 512, 1.5
ROUNDS, WARM_UP = 5, 3
FIRST_LONG, LAST_LONG = 4096, 2**17
MINUTES = 6.0
LOSS_ROOM = 0.02
"""By how much the loss of a replayed step may differ from that of the step before."""

LONGEST = 15
"""Kernels of a step that are noted, with their times."""

LONGEST_ALONE = "longest"
"""Instead of a length: nothing is timed."""

NEEDED = 15.0
"""Seconds without which nothing is compiled."""

NO_TIME = "no time left"
NOT_TRIED = {"failed": f"not tried: {NO_TIME}"}

Row = dict[str, Any]


@dataclass(frozen=True)
class Contender:
    """How a model computes.

    Attributes:
        name: For the table.
        attention: Of transformers; None is ours.
        compiled: Whether its blocks are compiled.
    """

    name: str
    attention: str | None
    compiled: bool = False


CONTENDERS = (
    Contender("eager", "eager"),
    Contender("SDPA", "sdpa"),
    Contender("everyformer", None),
    Contender("everyformer, compiled", None, True),
    Contender("SDPA, compiled", "sdpa", True),
    Contender("eager, compiled", "eager", True),
)
"""In this order: a time limit cuts off the peers whose compilation takes longest."""


def run(
    *,
    quick: bool = False,
    progress: Progress = no_progress,
    only: list[str] | None = None,
    minutes: float = MINUTES,
    kept: Kept | None = None,
) -> Row:
    """Each model with each contender, as long as there is time.

    Args:
        quick: One model at one length.
        progress: Told about each model.
        only: Names of models, each alone, with a length, or with the word longest.
        minutes: After which nothing is begun.
        kept: Where rows are kept as soon as they are known.
    """
    kept = kept or Kept()
    if find_spec("transformers") is None:
        msg = "bench models needs transformers, which is not installed. Install it."
        raise EveryformerError(msg)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lengths = GPU_LENGTHS if device == "cuda" else CPU_LENGTHS
    lengths = lengths[:1] if quick else lengths
    chosen = dict.fromkeys(only or (["T5-base"] if quick else MODELS))
    names = [_chosen(text, lengths) for text in chosen]
    end = time.perf_counter() + 60 * minutes
    report: Row = {"theme": "models", **kept.provenance, "gate": []}
    report |= {"device": device, "tokens": TOKENS, "rows": [], "longest": []}
    for done, (name, several, limits) in enumerate(names):
        progress(name, done, len(names))
        now = time.perf_counter()
        share = (end - now) / (len(names) - done)
        try:
            _one(
                report, kept, name, several, now + share, limits and not (quick and several)
            )
        except (torch.OutOfMemoryError, EveryformerError) as error:
            report["rows"].append({"model": name, "failed": _short(error)})
        _free()
    return report


def _chosen(text: str, lengths: tuple[int, ...]) -> tuple[str, tuple[int, ...], bool]:
    """A model, at which lengths it is timed, and whether the longest is looked for.

    T5-base, T5-base:512 for that length alone, T5-base:longest for no other.
    """
    name, colon, what = text.partition(":")
    number = int(what) if what.isascii() and what.isdecimal() else 0
    if name in MODELS and what == LONGEST_ALONE:
        return name, (), True
    if name in MODELS and 0 < number <= LAST_LONG:
        return name, (number,), False
    if name in MODELS and not colon:
        return name, lengths, True
    msg = (
        f"{text} is not among the models. Choose {', '.join(MODELS)}, each alone or with a "
        f"length up to {LAST_LONG:,} (T5-base:512), or with the longest that fits "
        f"(T5-base:{LONGEST_ALONE})."
    )
    raise InputError(msg)


def _one(
    report: Row, kept: Kept, name: str, lengths: tuple[int, ...], end: float, limits: bool
) -> None:
    """A model at several lengths, and with limits the longest sequence that fits."""
    device, library = report["device"], import_module("transformers")

    @cache
    def ready() -> tuple[Any, Any]:
        """The model and its optimiser, made and checked when something is to be timed."""
        model = build(name, library, device)
        kept.row(_gate_of(name, len(kept.starts)), lambda: gate(name, model))
        if device == "cuda":
            model.to(torch.bfloat16)
        fused = device == "cuda"
        return model, torch.optim.AdamW(model.parameters(), lr=1e-6, fused=fused)

    offered = _offered(class_of(name, library), device)
    for n, contender in product(lengths, offered):
        batch = max(1, TOKENS // n) if device == "cuda" else 2
        row = {"model": name, "n": n, "contender": contender.name, "batch": batch}
        needed = NEEDED if contender.compiled else 0

        def step_of(contender: Contender = contender, row: Row = row) -> Row:
            return _timed(row, contender, *ready())

        late = end - time.perf_counter() < needed and not kept.known(row)
        report["rows"].append(row | NOT_TRIED if late else kept.row(row, step_of))
    for contender in offered if limits else ():
        if not contender.compiled:
            row = {"model": name, "contender": contender.name, "longest": True}
            found = kept.known(row) or row | _longest(name, contender, end, ready)
            if found["stopped"] != NO_TIME:
                kept.row(row, lambda found=found: found)
            report["longest"].append(found)
    starts = range(1, len(kept.starts) + 1)
    gates = [kept.known(_gate_of(name, start)) for start in starts]
    report["gate"] += [x for x in gates if x and x not in report["gate"]]


def _gate_of(name: str, start: int) -> Row:
    """What names a gate: what is resumed may run other code, which is checked again."""
    return {"gate": name, "start": start}


def _offered(kind: Any, device: str) -> list[Contender]:
    """Those that a class has: SDPA where transformers does; compiled ones on a GPU."""
    sdpa = bool(getattr(kind, "_supports_sdpa", False))
    return [
        contender
        for contender in CONTENDERS
        if (sdpa or contender.attention != "sdpa")
        and not (contender.compiled and device == "cpu")
    ]


def _choose(model: Any, attention: str) -> None:
    """Transformers' own attention in every part of a model.

    In release 5.17 `set_attn_implementation` does not reach the two stacks of T5, which
    have configurations of their own.
    """
    model.set_attn_implementation(attention)
    for part in model.modules():
        if hasattr(part, "config"):
            part.config._attn_implementation = attention


def _contiguous(bias: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same bias with the keys innermost."""
    return lambda *given, **named: bias(*given, **named).contiguous()


@contextmanager
def computing_as(model: Any, contender: Contender) -> Generator[None, None, None]:
    """A model that computes as a contender says, for a while."""
    if contender.attention is None:
        speed_up(model)
    elif getattr(model, "_supports_sdpa", False):
        _choose(model, contender.attention)
    biased = [part for part in model.modules() if hasattr(part, "compute_bias")]
    for part in biased if contender.attention == "sdpa" else ():
        part.compute_bias = _contiguous(part.compute_bias)
    if contender.compiled:
        torch.compiler.reset()
        for block in blocks_of(model):
            block.compile(dynamic=False)
    try:
        yield
    finally:
        for block in blocks_of(model):
            block._compiled_call_impl = None
        for part in biased:
            vars(part).pop("compute_bias", None)
        if contender.attention is None:
            restore(model)


def _step(model: Any, optimiser: Any, **given: Tensor) -> Tensor:
    """The loss before the step."""
    optimiser.zero_grad(set_to_none=True)
    loss: Tensor = model(**given, **_no_cache(model)).loss
    loss.backward()
    optimiser.step()
    return loss.detach()


def _no_cache(model: Any) -> dict[str, bool]:
    return {"use_cache": False} if hasattr(model.config, "use_cache") else {}


def _timed(row: Row, contender: Contender, model: Any, optimiser: Any) -> Row:
    """Milliseconds of a step and of its kernels, and the most memory in use during it."""
    given = batch_of(row["model"], model, row["batch"], row["n"])

    def step() -> None:
        _step(model, optimiser, **given)
        _wait()

    try:
        with computing_as(model, contender):
            begun = time.perf_counter()
            for _ in range(WARM_UP):
                step()
            warm = time.perf_counter() - begun
            peak = _peak(step)
            times = [seconds_of(step) for _ in range(ROUNDS)]
            cuda = torch.cuda.is_available()
            kernels = kernels_of(step) if cuda else {}
            captured = _replayed(partial(_step, model, optimiser), given, optimiser)
    except Exception as error:
        return {"failed": _short(error)}
    finally:
        optimiser.zero_grad(set_to_none=True)
        _free()
    found: Row = {"step_ms": 1e3 * statistics.median(times), "peak_bytes": peak}
    if kernels:
        found["kernels_ms"] = sum(kernels.values())
        found["milliseconds_of_kernels"] = dict(list(kernels.items())[:LONGEST])
    return found | captured | {"warm_up_s": round(warm, 2)}


def _replayed(step: Callable[..., Tensor], given: dict[str, Tensor], optimiser: Any) -> Row:
    """Milliseconds of a step that is replayed from a CUDA graph; or why it cannot be.

    What is recorded may load kernels, which the strict mode forbids; so the loss of a
    replay is compared with that of the step before.
    """
    if not torch.cuda.is_available():
        return {}
    for group in optimiser.param_groups:
        group["capturable"] = True
    recorded = Recorded(step, capture_error_mode="relaxed")

    def replay() -> Tensor:
        loss = recorded(**given)
        torch.cuda.synchronize()
        return loss

    try:
        before = [float(replay()) for _ in range(RECORDED_FROM)][-1]
        loss = float(replay())
        if not abs(loss - before) <= LOSS_ROOM * abs(before):
            return {"not_captured": f"its loss is {loss}, before {before}"}
        times = [seconds_of(replay) for _ in range(ROUNDS)]
    except Exception as error:
        torch.cuda.synchronize()
        return {"not_captured": _short(error)}
    finally:
        for group in optimiser.param_groups:
            group["capturable"] = False
    return {"captured_ms": 1e3 * statistics.median(times)}


def _longest(
    name: str, contender: Contender, end: float, ready: Callable[[], tuple[Any, Any]]
) -> Row:
    """The longest sequence with which a step fits, by doubling; a batch of one."""
    if time.perf_counter() > end:
        return {"n": None, "stopped": NO_TIME}
    model, optimiser = ready()
    cuda = next(model.parameters()).is_cuda
    n, last = (FIRST_LONG, LAST_LONG) if cuda else (256, 512)
    found: Row = {"n": None, "stopped": ""}
    with computing_as(model, contender):
        while n <= last and not found["stopped"]:
            if time.perf_counter() > end:
                found["stopped"] = NO_TIME
                break
            try:
                given = batch_of(name, model, 1, n)
                peak = _peak(lambda given=given: _step(model, optimiser, **given))
                found |= {"n": n, "peak_bytes": peak}
            except (RuntimeError, torch.OutOfMemoryError) as error:
                found["stopped"] = f"at {n}: {_short(error)}"
            optimiser.zero_grad(set_to_none=True)
            _free()
            n *= 2
    return found


def gate(name: str, model: Any) -> Row:
    """Errors of ours and of transformers, in the dtype that is timed, beside float32.

    On a CPU both are float32, and the one beside them is float64.

    Raises:
        EveryformerError: If ours errs by half more than theirs.
    """
    cuda = next(model.parameters()).is_cuda
    n = GATE_LENGTH if cuda else CPU_LENGTHS[0]
    given = batch_of(name, model, 1, n)
    eager, ours = CONTENDERS[0], CONTENDERS[2]
    half = copy.deepcopy(model).to(torch.bfloat16 if cuda else torch.float32)
    exact = _results(model if cuda else copy.deepcopy(model).double(), given, eager)
    theirs, mine = (_results(half, given, contender) for contender in (eager, ours))
    row: Row = {"model": name, "n": n, "layers": len(blocks_of(model))}
    for place, what in enumerate(("logits", "gradients")):
        row[f"{what}_error"] = _off(mine[place], exact[place])
        row[f"{what}_error_of_transformers"] = _off(theirs[place], exact[place])
        limit = GATE_ROOM * row[f"{what}_error_of_transformers"] + 1e-5
        if not row[f"{what}_error"] <= limit:
            msg = (
                f"{name} on everyformer's operator fails its gate and is not timed: {row}."
            )
            raise EveryformerError(msg)
    model.zero_grad(set_to_none=True)
    return row


def _results(
    model: Any, given: dict[str, Tensor], contender: Contender
) -> tuple[Tensor, Tensor]:
    """Logits, and all gradients in one vector, on the CPU's side of float32."""
    with computing_as(model, contender):
        model.zero_grad(set_to_none=True)
        out = model(**given, **_no_cache(model))
        out.loss.backward()
    grads = [p.grad.flatten().float() for p in model.parameters() if p.grad is not None]
    return out.logits.detach().float(), torch.cat(grads)


def _off(x: Tensor, exact: Tensor) -> float:
    return float((x - exact).norm() / exact.norm())


def _peak(call: Callable[[], object]) -> int | None:
    """Bytes of GPU memory in use at most, with weights and the state of AdamW."""
    if not torch.cuda.is_available():
        call()
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"


def table(report: Row) -> Table:
    """The report for the terminal: milliseconds, GiB, and the ratio to ours."""
    columns = {
        "model": "{model}",
        "n": "{length}",
        "batch": "{batch}",
        "contender": "{contender}",
        "step ms": "{step_ms:.1f}",
        "kernels ms": "{kernels_ms:.1f}",
        "captured ms": "{captured_ms:.1f}",
        "peak GiB": "{peak_bytes:GiB.1f}",
        "to ours": "{ratio:.2f}",
    }
    best: dict[tuple[str, int | None], float] = {}
    for row in report["rows"]:
        if "step_ms" in row and row["contender"].startswith("everyformer"):
            key = (row["model"], row["n"])
            best[key] = min(row["step_ms"], best.get(key, row["step_ms"]))
    rows: list[Row] = []
    for row in report["rows"]:
        rows.append(row | ({"length": f"{row['n']:,}"} if "n" in row else {}))
        own = best.get((row["model"], row.get("n")))
        if "failed" not in row and own is not None:
            rows[-1]["ratio"] = row["step_ms"] / own
    for row in report["longest"]:
        told = {"batch": 1, "contender": f"{row['contender']}, longest that fits"}
        length = "none" if row["n"] is None else f"{row['n']:,}"
        rows.append(row | told | {"length": length})
    left = ("model", "contender")
    title = f"A step of training, {report['device']}"
    return table_of(title, rows, columns, left, head=4, longest=40)
