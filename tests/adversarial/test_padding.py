"""Zeros at the end of heads and units are read as if not there; nothing else is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import everyformer as ef
from everyformer.certify import padding, weights
from everyformer.certify.weights import read_weights
from everyformer.construct.pipeline import Built
from everyformer.model.stacks import Stage
from everyformer.targets import prefix_mean

SIZES = (4, 3, 9)


def with_entry(
    built: Built, half: str, name: str, at: tuple[int, ...], value: float
) -> Built:
    """The network with one number changed in the first stage that has this half."""
    stages = list(built.network.stages)
    k = next(i for i, s in enumerate(stages) if getattr(s, half) is not None)
    arrays = {key: array.copy() for key, array in stages[k].arrays()}
    arrays[f"{half}.{name}"][at] = value
    stages[k] = Stage.from_arrays(stages[k].name, stages[k].source, arrays, stages[k].kind)
    return replace(built, network=replace(built.network, stages=tuple(stages)))


@pytest.mark.parametrize(
    ("half", "name", "at"),
    [
        ("attention", "W_O", (0, 3, 0, 2)),
        ("attention", "W_Q", (0, 3, 2, 0)),
        ("attention", "b_Q", (0, 3, 2)),
        ("attention", "W_V", (0, 1, 2, 0)),
        ("feed_forward", "W_1", (0, 8, 0)),
        ("feed_forward", "b_1", (0, 8)),
        ("feed_forward", "W_2", (0, 0, 8)),
    ],
)
def test_one_number_in_the_padding_is_read(
    half: str, name: str, at: tuple[int, ...], tmp_path: Path
) -> None:
    larger = ef.construct(prefix_mean(2, 1), grid=2).embedded(*SIZES)
    changed = with_entry(larger, half, name, at, 2.0**-1074)
    changed.network.save(tmp_path / "network.safetensors")
    read = read_weights(tmp_path / "network.safetensors").stages
    stage = next(stage for stage in read if stage.half == half)
    assert (stage.arrays[name] != 0).sum() > 0
    assert stage.arrays[name][at] == 2.0**-1074


def as_it_is(_: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return arrays


def test_without_it_the_verifier_does_not_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    larger = ef.construct(prefix_mean(2, 1), grid=2).embedded(*SIZES)
    monkeypatch.setattr(weights, "without_padding", as_it_is)
    assert larger.certificate.verdict is ef.Verdict.UNKNOWN


def test_a_head_of_the_padding_that_writes_is_not_proved() -> None:
    built = ef.construct(prefix_mean(2, 1), grid=2)
    claim = built.certificate.eps
    larger = with_entry(built.embedded(3, 1, 4), "attention", "W_O", (0, 2, 0, 0), 1.0)
    larger = with_entry(larger, "attention", "W_V", (0, 2, 0, 0), 1.0)
    assert larger.certify(eps=claim).verdict is not ef.Verdict.PROVED


def test_zeros_in_the_middle_stay() -> None:
    ones = np.ones((2, 3, 1))
    ones[:, 1] = 0
    arrays = {"W_1": ones, "b_1": ones[..., 0], "W_2": np.swapaxes(ones, 1, 2)}
    kept = padding.without_padding("feed_forward", arrays | {"b_2": np.ones((2, 1))})
    assert kept["W_1"].shape == (2, 3, 1)
    nothing = {name: 0 * array for name, array in arrays.items()}
    kept = padding.without_padding("feed_forward", nothing | {"b_2": np.ones((2, 1))})
    assert kept["W_1"].shape == (2, 1, 1)
