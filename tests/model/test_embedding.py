"""The same function in a richer class, and in PyTorch's own layers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import everyformer as ef
from everyformer.certify import padding, weights
from everyformer.certify.weights import read_weights
from everyformer.construct.pipeline import Built
from everyformer.errors import InputError, NumberKindError
from everyformer.model.stacks import Stage
from everyformer.targets import centring, prefix_mean

SIZES = (4, 3, 9)
METHODS = {
    "theorem 2": (centring(2, 1), ef.SelectiveShifts()),
    "theorem 3": (prefix_mean(2, 1), ef.SelectiveShifts()),
    "modified": (prefix_mean(2, 1), ef.SelectiveShifts(softened=False)),
    "urpe": (prefix_mean(2, 1), ef.UrpeShifts()),
    "averaging": (prefix_mean(2, 1), ef.Averaging(variant="narrow")),
    "partition": (prefix_mean(2, 1), ef.Partition(decay=1, margin=4)),
}


@pytest.fixture(scope="module", params=METHODS)
def built(request: pytest.FixtureRequest) -> Built:
    target, method = METHODS[request.param]
    return ef.construct(target, grid=2, method=method)


def wider(built: Built) -> Built:
    """In a class that is larger in every size."""
    spec = built.network.architecture
    own = (spec.num_heads, spec.d_head, spec.d_ff)
    return built.embedded(*(max(a + 1, b) for a, b in zip(own, SIZES, strict=True)))


def points() -> np.ndarray:
    return np.random.default_rng(0).random((200, 2, 1))


def test_the_same_bits_and_the_same_bound_from_files(built: Built, tmp_path: Path) -> None:
    larger = wider(built)
    assert larger.network.architecture != built.network.architecture
    x = points()
    assert np.array_equal(larger.network(x), built.network(x))
    larger.save(tmp_path)
    found = ef.verify(tmp_path)
    assert found.verdict is ef.Verdict.PROVED
    for one, other in (
        (found.bound, built.certificate.bound),
        (found.float64_bound, built.certificate.float64_bound),
    ):
        assert (one and one.value) == (other and other.value)
    spec = larger.network.architecture
    again = ef.load(tmp_path / "network.safetensors")
    assert again.architecture == spec
    assert {s.attention.W_Q.shape[1:3] for s in again.stages if s.attention} <= {
        (spec.num_heads, spec.d_head)
    }


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((1, 1, 4), "h=1 is below 2"),
        ((2, 0, 4), "m=0 is below 1"),
        ((2, 1, 3), "r=3 is below 4"),
        ((1, 0, 1), "h=1 is below 2; m=0 is below 1; r=1 is below 4"),
    ],
)
def test_a_smaller_class_is_refused(sizes: tuple[int, int, int], said: str) -> None:
    network = ef.construct(prefix_mean(2, 1), grid=2).network
    with pytest.raises(InputError, match=f"{said}.*h >= 2, m >= 1, r >= 4"):
        network.embedded(*sizes)


@pytest.mark.unhooked
def test_sizes_are_integers() -> None:
    network = ef.construct(prefix_mean(2, 1), grid=2).network
    with pytest.raises(InputError, match=r"h=2.5, r=True: .*integers"):
        network.embedded(2.5, 1, True)  # pyright: ignore[reportArgumentType]


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


def test_standard_layers_agree(built: Built) -> None:
    spec = built.network.architecture
    if spec.normaliser == "hardmax" or spec.attention == "urpe":
        with pytest.raises(NumberKindError, match=r"hardmax; its feed-forward|a gain"):
            built.network.to_torch(standard=True, allow_rounding=True)
        return
    x = points()
    expected = built.network(x)
    for network in (built.network, wider(built).network):
        module = network.to_torch(standard=True)
        kinds = {type(part) for part in module.modules()}
        assert torch.nn.MultiheadAttention in kinds
        y = module(torch.tensor(x).reshape(2, 100, 2, 1)).detach().numpy()
        assert np.abs(y.reshape(x.shape) - expected).max() <= 1e-13
        if spec.width is None:  # selective shifts: softmax is saturated, ids are exact
            assert np.array_equal(y.reshape(x.shape), expected)


def test_standard_layers_with_a_mask() -> None:
    pattern = ef.patterns.star(3)
    built = ef.construct(prefix_mean(3, 1), grid=2, method=ef.SparseShifts(pattern))
    x = np.random.default_rng(0).random((50, 3, 1))
    y = built.network.to_torch(standard=True)(torch.tensor(x)).detach().numpy()
    assert np.abs(y - built.network(x, executor="reference")).max() <= 1e-13


def test_wrong_shapes_and_float32_are_refused() -> None:
    module = ef.construct(prefix_mean(2, 1), grid=2).network.to_torch(standard=True)
    with pytest.raises(ValueError, match=r"shape \(2, 2\)"):
        module(torch.zeros(2, 2, dtype=torch.float64))
    with pytest.raises(NumberKindError, match="float32"):
        module(torch.zeros(2, 1))
