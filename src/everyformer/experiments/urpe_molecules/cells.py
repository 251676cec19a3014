"""`urpe-zinc` and `urpe-qm9`: Graphormer, and Graphormer with URPE, on molecules.

Luo et al. 2022 (slides): the error of Graphormer on ZINC falls from .122 to .086 where its
attention has a gain by distance (URPE). Arms: `graphormer`, `graphormer+urpe`, and the
control `graphormer+c1`, whose gain is one number for each head: it tells a gain by distance
from a mere rescaling of attention. The floor: `gin`, `gcn` and `gat`, graph networks that
hear neighbours alone, of as many parameters and with the same training.

zinc12k, zinc250k, qm9-gap
    the molecules of the pack of that name
zinc12k-half-rate, zinc12k-twice-rate
    a quarter of the updates at other rates: does an order flip?
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from everyformer.data.molecules import MoleculeGraphs, Molecules
from everyformer.experiments.cell import Cell, Labels, Order, Size, labelled, training_cell
from everyformer.experiments.experiment import Cells
from everyformer.experiments.rates import at_other_rates, at_rate, split_rate
from everyformer.experiments.urpe_molecules.packs import graphs_of
from everyformer.experiments.urpe_molecules.sizes import Scale, scale_of
from everyformer.layers.graphs.batch import GraphBatch
from everyformer.layers.graphs.graphormer import GraphormerConfig, GraphormerModel
from everyformer.layers.graphs.message_passing import (
    KINDS,
    MessagePassingConfig,
    MessagePassingModel,
)
from everyformer.train.loop import Outcome
from everyformer.train.objectives.regress import Regress
from everyformer.train.processes import process_state
from everyformer.train.throughput import BACKWARD

ARMS: Mapping[str, str] = {
    "graphormer": "none",
    "graphormer+urpe": "urpe",
    "graphormer+c1": "c1",
}
"""The gain of each arm."""

FLOOR = KINDS
"""Graph networks of the same size."""

MAIN: Mapping[str, str] = {"urpe-zinc": "zinc12k", "urpe-qm9": "qm9-gap"}
"""The task that is run first."""


def order_of(experiment: str) -> Order:
    """The labels of all cells of an experiment, seed by seed, the core first."""

    @labelled("task", "arm", "seed")
    def order(size: Size, seeds: Sequence[int]) -> list[tuple[str, str, int]]:
        main = MAIN[experiment]
        told = [(main, arm, seed) for seed in seeds for arm in ARMS]
        told += [(main, arm, seed) for seed in seeds for arm in FLOOR]
        if experiment == "urpe-zinc" and size in ("reduced", "paper"):
            both = list(ARMS)[:2]
            told += [("zinc250k", arm, seed) for seed in seeds for arm in both]
            if size == "reduced":
                short = at_other_rates(main)
                told += [(task, arm, seeds[0]) for task in short for arm in both]
        return told

    return order


def cells_of(experiment: str) -> Cells:
    """The cells of an experiment."""

    def cells(
        size: Size,
        seeds: Sequence[int],
        changes: Mapping[str, Any],
        data: Path | None = None,
    ) -> list[Cell]:
        scale = scale_of(experiment, size, changes)
        found = graphs_of(experiment, size, data, scale.model.max_steps)
        made: list[Cell] = []
        for labels in order_of(experiment)(size, seeds):
            graphs = found.get(split_rate(str(labels["task"]))[0])
            if graphs is not None:
                made.append(cell(labels, scale, graphs))
        return made

    return cells


def cell(labels: Labels, scale: Scale, graphs: MoleculeGraphs) -> Cell:
    """The complete config of one run."""
    task, arm, seed = str(labels["task"]), str(labels["arm"]), int(labels["seed"])
    config = replace(scale.train, seed=seed)
    config = at_rate(config, split_rate(task)[1])
    model = replace(scale.model, gain=ARMS.get(arm, "none"))
    floor = floor_of(arm, scale.model) if arm in FLOOR else None
    mean, deviation = graphs.moments() if scale.standardised else (0.0, 1.0)
    molecules = Molecules(graphs, seed)

    def build() -> Regress:
        made = GraphormerModel(model) if floor is None else MessagePassingModel(floor)
        made.check(graphs.on(process_state().device or torch.device("cpu"))[0])
        return Regress(made, mean, deviation)

    mixers = arm if floor is None else f"{arm}, {floor.layers} x {floor.dim}"
    described = {**model.to_json(), "gain": "by arm", "mixers": mixers}
    operations = forward_operations(floor or scale.model, graphs.max_nodes)
    return training_cell(
        labels,
        build,
        described | {"objective": "absolute error", "mean": mean, "scale": deviation},
        molecules,
        config,
        {},
        metric="mae",
        clusters=lambda: molecules.clusters("test"),
        operations=(1 + BACKWARD) * float(operations) * config.batch * config.steps,
        derived=derived,
    )


def derived(outcome: Outcome) -> dict[str, Any]:
    """The learnt tables by distance, and where the validation error was smallest."""
    tables = {
        f"{letter}_by_distance": outcome.positions[name].tolist()
        for letter in ("B", "C")
        if (name := f"{letter} by distance") in outcome.positions
    }
    evaluated = [line for line in outcome.curve if "mae" in line]
    best = min(evaluated, key=lambda line: line["mae"], default=None)
    test = outcome.test
    hurt = test["mae_without_structure"].mean_sampled / test["mae"].mean_sampled
    found = (
        {} if best is None else {"best_validation": best["mae"], "best_at": best["step"]}
    )
    return {**tables, **found, "without_structure": hurt}


@cache
def floor_of(kind: str, model: GraphormerConfig) -> MessagePassingConfig:
    """A graph network of as many blocks and, nearly, as many parameters as Graphormer."""
    with torch.device("meta"):
        like = GraphormerModel(replace(model, gain="none"))
    wanted = sum(one.numel() for one in like.parameters())
    sizes = {"layers": model.layers, "heads": model.heads, "node_rows": model.node_rows}
    first = MessagePassingConfig(kind, dim=model.heads, dropout=model.dropout, **sizes)
    return first.of_size(wanted)


@cache
def forward_operations(model: GraphormerConfig | MessagePassingConfig, nodes: int) -> int:
    """Operations of products for one graph, counted by PyTorch without numbers."""
    tokens = nodes + 1
    graph_network = isinstance(model, MessagePassingConfig)
    steps = 1 if graph_network else model.max_steps
    with torch.device("meta"):
        made = MessagePassingModel(model) if graph_network else GraphormerModel(model)
        one = torch.zeros(1, nodes, dtype=torch.uint8)
        pairs = torch.zeros(1, tokens, tokens, dtype=torch.uint8)
        paths = torch.zeros(1, tokens, tokens, steps, dtype=torch.uint8)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            made(GraphBatch(one, one, one, pairs, paths))
    return counter.get_total_flops()
