"""Which contexts are told apart, and which collide."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import everyformer as ef
from everyformer.checks.contexts import all_contexts

Command = Callable[..., Any]


def test_all_contexts_of_theorem_2(everyformer: Command, swap_mean_4: Path) -> None:
    lines = everyformer("contextual-mapping", swap_mean_4).stdout.splitlines()
    assert lines[0].startswith("PROVED on 20 sequences, smallest gap ")  # 4 + 16 multisets
    assert lines[1] == (
        "Sequences: one for each cell of the grid, up to the order of tokens."
    )
    assert [line.split(":")[-1].strip() for line in lines[2:]] == ["holds"] * 3
    found = json.loads(everyformer("contextual-mapping", swap_mean_4, "--json").stdout)
    assert (found["verdict"], found["sequences"]) == ("PROVED", 20)
    states = all_contexts(ef.load(swap_mean_4 / "network.safetensors"))
    assert sorted(np.unique(states)) == [0, 0.25, 0.5, 0.75]


def test_positions_and_rationals(everyformer: Command) -> None:
    for number, method in enumerate([ef.SelectiveShifts(softened=False), ef.UrpeShifts()]):
        built = ef.construct(ef.targets.reverse(2, 1), grid=2, method=method)
        built.network.save(f"{number}.safetensors")
        shown = everyformer("contextual-mapping", f"{number}.safetensors").stdout
        assert shown.startswith("PROVED on 4 sequences")
        assert "6.3" not in shown


def test_without_its_shifts_a_network_confuses_contexts(
    everyformer: Command, swap_mean_4: Path
) -> None:
    network = ef.load(swap_mean_4 / "network.safetensors")
    kept = tuple(stage for stage in network.stages if stage.kind != "selective shifts")
    replace(network, stages=kept).save("broken.safetensors")
    shown = everyformer("contextual-mapping", "broken.safetensors", code=1).stdout
    assert shown.startswith("REFUTED on 20 sequences, smallest gap 0")
    assert "property 6.2 fails: token " in shown
    assert "sequences share no id: fails" in shown


def test_sequences_of_the_user(everyformer: Command, swap_mean_4: Path) -> None:
    np.save("x.npy", np.array([[[0.0], [0.25], [0.5]], [[0.0], [0.25], [0.75]]]))
    shown = everyformer("contextual-mapping", swap_mean_4, "--sequences", "x.npy").stdout
    assert shown.startswith("PROVED on 2 sequences")
    assert "those of x.npy" in shown
    np.save("x.npy", np.zeros((2, 3, 1)))
    refused = everyformer(
        "contextual-mapping", swap_mean_4, "--sequences", "x.npy", code=2
    ).stderr
    assert "Sequences 0 and 1 are the same" in refused


def test_networks_without_such_a_map_are_refused(everyformer: Command) -> None:
    built = ef.construct(ef.targets.reverse(2, 1), grid=2, method="averaging")
    built.network.save("mean.safetensors")
    said = everyformer("contextual-mapping", "mean.safetensors", code=2).stderr
    assert "no contextual map of Lemma 6" in said or "whose ids are sums" in said
