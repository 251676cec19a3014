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


def test_a_false_kind_is_not_folded() -> None:
    """Every stage claims to be of that kind; what is proved then says tests/contracts."""
    for kind in (None, *get_args(StageKind)):
        network = with_stages(*(replace(s, kind=kind) for s in built().network.stages))
        with pytest.raises(NotFoldableError):
            network(np.zeros((2, 1)), executor="folded")


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
