"""The same function in a richer class, and in PyTorch's own layers."""

from pathlib import Path

import numpy as np
import pytest
import torch

import everyformer as ef
from everyformer.construct.pipeline import Built
from everyformer.errors import InputError, NumberKindError
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


@pytest.mark.rows(3)
def test_the_same_values_and_the_same_bound_from_files(
    built: Built, tmp_path: Path
) -> None:
    larger = wider(built)
    assert larger.network.architecture != built.network.architecture
    x = points()
    apart = np.abs(larger.network(x) - built.network(x)).max()
    # Products with prefix tokens are summed by a library, whose order depends on sizes.
    assert apart <= (2.0**-48 if built.network.executor.has_deaf_prefix else 0)
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
