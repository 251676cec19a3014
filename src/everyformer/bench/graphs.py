"""Graphormer in training: molecules a second of our whole update beside public forms.

The slim model of ZINC, 256 molecules of up to 37 atoms in an update, all dropouts .1. Ours
is the trainer of `everyformer.train`: blocks compiled, tables looked up by products, the
whole update (batch included) replayed as one CUDA graph, once with URPE and once without.
Theirs: Graphormer as its public code computes it, as it is and by `torch.compile`, and
PyTorch Geometric's GPSConv of the same depth and width, each by a plain loop, their batches
made before the clock starts.

Before the clock: our numbers against those of the public form with the same weights. On a
CPU: a tiny model and nothing compiled, to see that all of it runs.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from everyformer.bench.graph_peers import Gps, PublicGraphormer, as_lists, copy_weights
from everyformer.bench.results import environment
from everyformer.bench.tables import table_of
from everyformer.bench.timing import kernels_of, update_seconds
from everyformer.data.molecules import MoleculeGraphs, Molecules
from everyformer.data.packs.molecules import ZINC_TYPES, Molecule, stored_molecules
from everyformer.data.packs.pack import new_pack
from everyformer.data.randomness import SPLITS, Split, mixed_key
from everyformer.errors import EveryformerError
from everyformer.layers.graphs.batch import GraphBatch
from everyformer.layers.graphs.graphormer import GraphormerConfig, GraphormerModel
from everyformer.progress import Progress, no_progress
from everyformer.train.config import TrainConfig
from everyformer.train.objectives.regress import Regress
from everyformer.train.processes import accelerator
from everyformer.train.trainer import Trainer, rounded_products

SLIM = GraphormerConfig()
TINY = replace(SLIM, layers=2, dim=16, heads=2, ffn=16)
LEAST, MOST = 9, 37
"""Atoms of a molecule, as in ZINC."""

WARM_UP, IN_A_ROW, ROUNDS = 6, 20, 5
CLIP, LEARNING_RATE = 5.0, 2e-4
TOLERANCE = 1e-4
"""Largest difference of our output and the public form's, as a share of the largest."""

Step = Callable[[], Any]


@dataclass(frozen=True)
class Contender:
    """What is timed.

    Attributes:
        how: "ours", "public", "public, compiled" or "gps".
        gain: Of the model.
        compiled: Whether our blocks are; without it our update is recorded all the same.
        changes: Of the model's config.
    """

    how: str
    gain: str = "none"
    compiled: bool = True
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])


CONTENDERS = (
    Contender("ours"),
    Contender("ours", "urpe"),
    Contender("ours, not compiled", "urpe", compiled=False),
    Contender("ours, no attention dropout", "urpe", changes={"attention_dropout": 0.0}),
    Contender(
        "ours, fused attention", "urpe", changes={"attention_dropout": 0.0, "fused": True}
    ),
    Contender("public"),
    Contender("public, compiled"),
    Contender("gps"),
)


def made_graphs(count: int, max_steps: int) -> MoleculeGraphs:
    """Molecules like those of ZINC in size: trees with three rings, made by hashes."""
    found: list[Molecule] = []
    for number in range(count):
        size = LEAST + mixed_key(number, 0) % (MOST - LEAST + 1)
        bonds = {
            (max(0, atom - 1 - mixed_key(number, atom) % 4), atom)
            for atom in range(1, size)
        }
        bonds |= {(a, min(a + 5, size - 1)) for a in range(0, size - 2, 12)}
        kinds = ((a, b, 1 + mixed_key(number, a, b) % 3) for a, b in bonds)
        atoms = tuple(ZINC_TYPES[mixed_key(number, 99, a) % 9] for a in range(size))
        found.append(Molecule(atoms, tuple(sorted(kinds, key=lambda b: (b[1], b[0])))))
    targets = [len(one.bonds) / 10 for one in found]
    splits: list[Split] = [SPLITS[number % 3] for number in range(count)]
    arrays, counts, tokeniser = stored_molecules(found, targets, splits)
    header = {"name": "made", "licence": "", "tokeniser": tokeniser, "sources": {}}
    pack = new_pack(header | {"counts": counts}, arrays)
    return MoleculeGraphs(pack, max_nodes=MOST, max_steps=max_steps)


def run(*, quick: bool = False, progress: Progress = no_progress) -> dict[str, Any]:
    """Every contender: milliseconds of an update, molecules a second, and ratios.

    Args:
        quick: Few molecules and the first contender alone.
        progress: Told of each contender.
    """
    started = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    config, batch = (SLIM, 256) if on_gpu else (TINY, 8)
    graphs = made_graphs(6 * batch if on_gpu else 48, config.max_steps)
    apart = gate(config, graphs, device)
    rows: list[dict[str, Any]] = []
    found = [one for one in CONTENDERS if on_gpu or one.how != "public, compiled"]
    for done, contender in enumerate(found[:1] if quick else found):
        told = f"{contender.how}, gain {contender.gain}"
        progress(told, done, len(found))
        row: dict[str, Any] = {
            "how": contender.how, "gain": contender.gain, "batch": batch,
        }  # fmt: skip
        try:
            own = replace(config, gain=contender.gain, **contender.changes)
            make = _ours if contender.how.startswith("ours") else _theirs
            step, first = make(contender, own, graphs, batch, device)
            rows.append(row | first | _timed(step, batch, device))
        except (RuntimeError, ImportError, EveryformerError) as error:
            rows.append(row | {"failed": str(error).splitlines()[0][:300]})
    report: dict[str, Any] = {"theme": "graphs", "environment": environment()}
    report |= {"error_sampled": apart, "rows": _compared(rows)}
    return report | {"wall_s": time.monotonic() - started}


def gate(config: GraphormerConfig, graphs: MoleculeGraphs, device: torch.device) -> float:
    """How far our output is from the public form's with the same weights.

    Raises:
        EveryformerError: If they differ by more than `TOLERANCE`.
    """
    batch, _ = graphs.on(device)
    some = batch.take(torch.arange(8, device=device))
    torch.manual_seed(0)
    ours = GraphormerModel(config).to(device).eval()
    public = PublicGraphormer(config).to(device).eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(std=0.3)
        copy_weights(ours, public)
        mine, theirs = ours(some), public(some)
    error = float((mine - theirs).abs().max() / theirs.abs().max())
    if not error <= TOLERANCE:
        msg = f"Our output differs by {error:.3g} from the public form's: nothing is timed."
        raise EveryformerError(msg)
    return error


def _ours(
    contender: Contender,
    config: GraphormerConfig,
    graphs: MoleculeGraphs,
    batch: int,
    device: torch.device,
) -> tuple[Step, dict[str, Any]]:
    """The update of our trainer."""
    fast = device.type == "cuda"
    settings = TrainConfig(
        steps=10**6, batch=batch, lr=LEARNING_RATE, warmup=100, clip=CLIP,
        weight_decay=0.01, decay_biases=False, precision="tf32", record=fast,
        compile=fast and contender.compiled,
    )  # fmt: skip

    def build() -> Regress:
        return Regress(GraphormerModel(config))

    trainer = Trainer(build, Molecules(graphs, 0), settings, accelerator())
    began = time.monotonic()
    loss = trainer.global_means(trainer.update())["loss"]
    return trainer.update, {
        "loss_sampled": loss,
        "first_step_s_sampled": time.monotonic() - began,
        "parameters": sum(p.numel() for p in trainer.objective.parameters()),
    }


def _theirs(
    contender: Contender,
    config: GraphormerConfig,
    graphs: MoleculeGraphs,
    batch: int,
    device: torch.device,
) -> tuple[Step, dict[str, Any]]:
    """An update by a plain loop; batches lie on the device before the clock starts."""
    whole, targets = graphs.on(device)
    torch.manual_seed(0)
    public = contender.how.startswith("public")
    model: nn.Module = PublicGraphormer(config) if public else Gps(config)
    model.to(device).train()
    if contender.how == "public, compiled":
        model.compile(dynamic=False)
    batches: list[tuple[GraphBatch | tuple[Tensor, ...], Tensor]] = []
    for first in range(0, len(targets) - batch + 1, batch):
        places = torch.arange(first, first + batch, device=device)
        some = whole.take(places)
        batches.append((some if public else as_lists(some), targets[places]))
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=device.type == "cuda"
    )
    turn = 0

    def step() -> Tensor:
        nonlocal turn
        given, wanted = batches[turn % len(batches)]
        turn += 1
        with rounded_products(True):
            loss = (model(given) - wanted).abs().mean()
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        optimiser.zero_grad()
        return loss.detach()

    began = time.monotonic()
    return step, {
        "loss_sampled": float(step()),
        "first_step_s_sampled": time.monotonic() - began,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def _timed(step: Step, batch: int, device: torch.device) -> dict[str, Any]:
    """Median time of an update, and the rate that follows from it."""
    often = (WARM_UP, IN_A_ROW, ROUNDS) if device.type == "cuda" else (1, 1, 3)
    seconds = update_seconds(step, device, *often)
    row = {"step_ms_sampled": 1e3 * seconds, "molecules_per_s_sampled": batch / seconds}
    on_gpu = device.type == "cuda"
    return row | ({"milliseconds_of_kernels": kernels_of(step)} if on_gpu else {})


def _compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With how many times faster the first row is than each."""
    first = rows[0].get("step_ms_sampled")
    return [
        row | {"first_is_faster_by_sampled": row["step_ms_sampled"] / first}
        if first and "step_ms_sampled" in row
        else row
        for row in rows
    ]


def table(report: dict[str, Any]) -> Table:
    """A row for each contender."""
    columns = {
        "how": "{how}",
        "gain": "{gain}",
        "parameters": "{parameters:,}",
        "ms": "{step_ms_sampled:.2f}",
        "molecules / s": "{molecules_per_s_sampled:,.0f}",
        "first is faster": "{first_is_faster_by_sampled:.2f} x",
    }
    title = "Graphs: updates of Graphormer, slim"
    shown = table_of(title, report["rows"], columns, left=["how"], head=2)
    shown.title_justify = "left"
    return shown
