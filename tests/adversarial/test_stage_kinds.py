"""The kind of a stage is a hint: a false one may cost the proof, and proves nothing."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from tests.certify.tampered import write_weights

import everyformer as ef
from everyformer.files.description import StageKind, check_description, kind_of, stage_entry
from everyformer.files.network_file import read_arrays
from everyformer.model.execute.folded import NotFoldableError
from everyformer.model.network import load
from everyformer.model.stacks import Stage
from everyformer.targets import reverse
from everyformer.verdict import Verdict


@cache
def built() -> ef.Built:
    return ef.construct(reverse(2, 1), grid=4)


def with_stages(*stages: Stage) -> ef.Network:
    return replace(built().network, stages=stages)


def test_names_steer_nothing(tmp_path: Path) -> None:
    """With other names the network is proved, folded and traced as before."""
    original = built().network
    built().save(tmp_path)
    network = with_stages(
        *(replace(s, name=f"step {k}") for k, s in enumerate(original.stages))
    )
    write_weights(tmp_path, network)
    found = ef.verify(tmp_path)
    assert found.verdict is Verdict.PROVED
    assert load(tmp_path / "network.safetensors").stages[1].name == "step 1"
    x = np.random.default_rng(0).random((50, 2, 1))
    assert (network(x, executor="folded") == original(x, executor="folded")).all()


@pytest.mark.parametrize("kind", [None, *get_args(StageKind)])
def test_a_false_kind_is_undecided_at_worst(kind: StageKind | None, tmp_path: Path) -> None:
    """Every stage claims to be of that kind, under its old name."""
    built().save(tmp_path)
    network = with_stages(*(replace(s, kind=kind) for s in built().network.stages))
    write_weights(tmp_path, network)
    found = ef.verify(tmp_path)
    first = built().network.stages[0]
    proved = kind == "quantise" == first.kind
    assert found.verdict is (Verdict.PROVED if proved else Verdict.UNKNOWN)
    with pytest.raises(NotFoldableError):
        network(np.zeros((2, 1)), executor="folded")


@pytest.mark.parametrize("at", range(1, 6))
def test_a_quantiser_that_begins_elsewhere_is_undecided(at: int, tmp_path: Path) -> None:
    built().save(tmp_path)
    old = built().network.stages
    assert old[0].kind == "quantise"
    kinds = [None, *(s.kind for s in old[1:])]
    kinds[min(at, len(old) - 1)] = "quantise"
    stages = (replace(s, kind=kind) for s, kind in zip(old, kinds, strict=True))
    write_weights(tmp_path, with_stages(*stages))
    assert ef.verify(tmp_path).verdict is Verdict.UNKNOWN


def test_every_pair_of_name_and_kind_comes_back() -> None:
    for name in ("x", *get_args(StageKind)):
        for kind in (None, *get_args(StageKind)):
            entry = stage_entry(name, "source", kind)
            assert kind_of(entry) == kind
            assert len(entry) == (2 if kind == name or (kind, name) == (None, "x") else 3)


@pytest.mark.parametrize("kind", ["", "nonsense", 3, True, ["quantise"], {"a": 1}])
def test_a_kind_that_does_not_exist_is_refused(kind: object, tmp_path: Path) -> None:
    built().network.save(tmp_path / "network.safetensors")
    description = read_arrays(tmp_path / "network.safetensors").description
    check_description(description)
    description["stages"][0] = ["quantise", "here", kind]
    with pytest.raises(ValueError, match="perhaps with a kind"):
        check_description(description)
