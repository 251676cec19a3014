"""Networks: inputs of many kinds, exact evaluation, traces, files, conversion."""

import json
from dataclasses import fields
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

import everyformer as ef
from everyformer.construct.pipeline import Built
from everyformer.errors import DomainError, FileFormatError, NumberKindError
from everyformer.files.network_file import read_arrays
from everyformer.model import storage
from everyformer.model.construction import Construction
from everyformer.model.cost import count
from everyformer.model.forward import run_stages
from everyformer.numerics.rationals import exact_array
from everyformer.targets import centring, reverse

SHAPES = {"soft": (2, 2), "hard": (2, 1), "positional": (2, 1)}
SHAPES |= {"urpe": (3, 1), "urpe_hard": (3, 1)}


@pytest.fixture(scope="module")
def soft() -> Built:
    return ef.construct(centring(2, 2), grid=4)


@pytest.fixture(scope="module")
def hard() -> Built:
    return ef.construct(centring(2, 1), grid=3, method=ef.SelectiveShifts(softened=False))


@pytest.fixture(scope="module")
def positional() -> Built:
    return ef.construct(reverse(2, 1), grid=8)


@pytest.fixture(scope="module")
def urpe() -> Built:
    return ef.construct(reverse(3, 1), grid=4, method="urpe")


@pytest.fixture(scope="module")
def urpe_hard() -> Built:
    target = ef.Target(lambda x: x[..., ::-1, :], 3, 1, domain=[(-1, 0.7)])
    return ef.construct(target, grid=3, method=ef.UrpeShifts(softened=False))


def test_numpy_torch_and_batches(soft: Built) -> None:
    x = np.random.default_rng(0).random((3, 2, 5, 2, 2))
    y = soft.network(x)
    assert y.shape == x.shape
    assert np.array_equal(soft.network(x[1, 1, 4]), y[1, 1, 4])
    tensor = soft.network(torch.tensor(x))
    assert isinstance(tensor, torch.Tensor)
    assert tensor.dtype == torch.float64
    assert np.array_equal(tensor.numpy(), y)
    assert soft.network(np.zeros((0, 2, 2))).shape == (0, 2, 2)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 3)), r"shape \(2, 3\), but this network takes \(\*batch, 2, 2\)"),
        (np.zeros(2), r"shape \(2,\)"),
        (np.full((2, 2), np.nan), r"x\[0, 0\] = nan is not finite"),
        (np.full((1, 2, 2), np.inf), r"x\[0, 0, 0\] = inf"),
        (np.full((2, 2), 1e30), "outside .* box widths"),
        (np.array([["a", "b"], ["c", "d"]]), "dtype <U1"),
        (np.zeros((2, 2), dtype=complex), "dtype complex128"),
    ],
)
def test_bad_inputs(soft: Built, x: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        soft.network(x)


def test_theorem_3_says_nothing_outside(positional: Built) -> None:
    with pytest.raises(DomainError, match=r"x\[1, 0\] = .*1.25.* Clip the input"):
        positional.network(np.array([[0.5], [1.25]]))


def test_exact_evaluation_equals_fractions(hard: Built) -> None:
    """The integer pass against the same layers run naively on Fractions."""
    x = exact_array([[[Fraction(1, 7)], [0.625]], [[Fraction(2, 3)], [1]], [[-5], [2]]])
    naive = x
    for _, state in run_stages(hard.network.stages, x, "hardmax"):
        naive = state
    assert (hard.network.exact(x) == naive).all()
    assert hard.network.exact(x)[2].tolist() == [[0], [0]]


def test_calling_an_exact_network_rounds_once(hard: Built) -> None:
    x = np.random.default_rng(1).random((20, 2, 1))
    assert np.array_equal(hard.network(x), hard.network.exact(x).astype(float))


def test_softmax_has_no_exact_value(soft: Built) -> None:
    with pytest.raises(NumberKindError, match="softened=False"):
        soft.network.exact(np.zeros((2, 2)))


def test_trace(soft: Built, hard: Built) -> None:
    x = np.array([[0.3, 0.9], [0.55, 0.1]])
    steps = soft.network.trace(x)
    assert [s.stage for s in steps] == ["input", *(s.name for s in soft.network.stages)]
    states = {step.stage: step for step in steps}
    assert states["quantise"].state.tolist() == [[0.25, 0.75], [0.5, 0.0]]
    ids = states["quantise"].ids
    assert ids is not None
    assert ids.tolist() == [0.25 + 4 * 0.75, 0.5]
    assert np.array_equal(states["clamp"].state, soft.network(x))
    exact = {s.stage: s for s in hard.network.trace(np.array([[0.4], [0.9]]))}
    assert exact["quantise"].state.tolist() == [[Fraction(1, 3)], [Fraction(2, 3)]]


def test_the_description_of_a_dense_network_is_what_it_was(
    positional: Built, urpe: Built
) -> None:
    """Files of dense networks are read by programs that know of no other attention."""
    spec, made = positional.network.architecture, positional.network.construction
    assert made is not None
    new = {"attention", "width", "num_prefix", "pattern"}
    assert set(spec.to_json()) == {f.name for f in fields(spec)} - new
    ids = {"id_direction", "id_low", "id_high"}
    written = made.to_json(spec.inner_width)
    assert set(written) == {f.name for f in fields(made)} - {"paper", "ids"} | ids
    assert Construction.from_json(written) == made
    assert urpe.network.architecture.to_json()["attention"] == "urpe"


def test_trace_of_urpe_shows_the_positions(urpe: Built, urpe_hard: Built) -> None:
    x = np.array([[0.3], [0.3], [0.3]])
    steps = urpe.network.trace(x)
    assert [s.stage for s in steps][:3] == ["input", "position layer", "quantise"]
    states = {step.stage: step.state for step in steps}
    assert np.array_equal(states["input"], x)
    assert np.allclose(
        states["position layer"], x + np.array([[0], [1.25], [2.5]]), atol=1e-12
    )
    assert states["quantise"].tolist() == [[0.25], [1.5], [2.75]]
    exact = {s.stage: s.state for s in urpe_hard.network.trace(x)}
    third = Fraction(4, 3) * (Fraction(0.7) + 1)
    assert exact["position layer"].tolist() == [
        [Fraction(0.3) + j * third] for j in range(3)
    ]
    (before, after) = urpe.network.trace_blocks(x, "position layer")
    assert np.array_equal(before.state, x)
    assert np.abs(after.state - states["position layer"]).max() <= 1e-14


def test_a_gain_for_another_number_of_tokens_is_refused(
    urpe: Built, tmp_path: Path
) -> None:
    arrays = dict(urpe.network.arrays())
    name = "stages.0.attention.gain"
    assert arrays[name].shape == (1, 2, 5)
    with pytest.raises(ValueError, match="gain of 7 offsets, but 3 tokens have 5"):
        urpe.network.with_arrays(arrays | {name: np.ones((1, 2, 7))})
    urpe.network.save(tmp_path / "n")
    found = read_arrays(tmp_path / "n")
    arrays = storage.simplified(found) | {name: np.ones((1, 2, 7))}
    storage.write_arrays(tmp_path / "n", arrays, found.description)
    with pytest.raises(FileFormatError, match="gain of 7 offsets"):
        ef.load(tmp_path / "n")


def test_trace_blocks_shows_each_shift(soft: Built) -> None:
    x = np.array([[0.3, 0.9], [0.55, 0.1]])
    steps = soft.network.trace_blocks(x, "selective shifts")
    assert len(steps) == 1 + 16
    moved = [
        (a.ids != b.ids).sum()  # type: ignore[union-attr]
        for a, b in pairwise(steps)
    ]
    assert sum(moved) == 2  # each token is shifted once
    after = soft.network.trace(x)
    shifted = next(s for s in after if s.stage == "selective shifts")
    assert np.array_equal(steps[-1].state, shifted.state)
    with pytest.raises(ValueError, match="no stage 'warp'"):
        soft.network.trace_blocks(x, "warp")


@pytest.mark.parametrize("name", SHAPES)
def test_files_are_bit_exact(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    network = request.getfixturevalue(name).network
    path = tmp_path / "deep" / "network.safetensors"
    network.save(path)
    again = ef.load(path)
    assert again.architecture == network.architecture
    assert again.construction == network.construction
    pairs = list(zip(network.arrays(), again.arrays(), strict=True))
    assert len(pairs) > 10
    for (name_a, a), (name_b, b) in pairs:
        assert name_a == name_b
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)
    x = np.random.default_rng(2).random((4, *SHAPES[name])) * 0.7
    assert np.array_equal(network(x), again(x))
    with safe_open(path, framework="numpy") as file:
        version = json.loads(file.metadata()[storage.FORMAT])["version"]
    assert version == (2 if "urpe" in name else 1)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_large_rationals_survive_a_file(tmp_path: Path) -> None:
    array = exact_array([[Fraction(-(10**40), 3), 0], [Fraction(1, 2**90), 7**50]])
    storage.write_arrays(tmp_path / "a", {"w": array, "e": array[:0]}, {})
    arrays = storage.simplified(read_arrays(tmp_path / "a"))
    assert (arrays["w"] == array).all()
    assert arrays["e"].shape == (0, 2)


def test_bad_files(soft: Built, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a file"):
        ef.load(tmp_path / "missing.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"not a safetensors file at all")
    with pytest.raises(FileFormatError, match="not a readable safetensors"):
        ef.load(broken)
    foreign = tmp_path / "foreign.safetensors"
    save_file({"w": np.zeros(3)}, foreign)
    with pytest.raises(FileFormatError, match="not one of an everyformer network"):
        ef.load(foreign)
    newer = tmp_path / "newer.safetensors"
    save_file({"w": np.zeros(3)}, newer, {storage.FORMAT: '{"version": 99}'})
    with pytest.raises(FileFormatError, match="version 99"):
        ef.load(newer)
    for header in (
        "{",
        "[]",
        '{"version": 1}',
        '{"version": 1, "denominators": {"z": "3"}}',
        '{"version": 1, "denominators": {"w": "0"}}',
    ):
        save_file({"w": np.ones(3)}, newer, {storage.FORMAT: header})
        with pytest.raises(FileFormatError, match="is damaged"):
            ef.load(newer)
    arrays = dict(soft.network.arrays())
    arrays["stages.1.feed_forward.W_1"] = np.zeros((1, 1, 1))
    soft.network.save(tmp_path / "good.safetensors")
    header = read_arrays(tmp_path / "good.safetensors").description
    storage.write_arrays(tmp_path / "bad.safetensors", arrays, header)
    with pytest.raises(FileFormatError, match="is damaged"):
        ef.load(tmp_path / "bad.safetensors")


def test_a_failed_save_leaves_nothing(
    soft: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(storage, "save_file", fail)
    with pytest.raises(KeyboardInterrupt):
        soft.network.save(tmp_path / "network.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_rounding_rationals_must_be_asked_for(hard: Built) -> None:
    with pytest.raises(NumberKindError, match="rationals that float64 cannot hold"):
        hard.network.in_float64()
    rounded = hard.network.in_float64(allow_rounding=True)
    assert not rounded.is_exact
    x = np.random.default_rng(3).random((10, 2, 1))
    assert np.allclose(rounded(x), hard.network(x), atol=1e-9)


def test_cost_counts_what_is_there(soft: Built) -> None:
    cost = count(soft.network)
    blocks = soft.network.blocks
    assert cost.attention_layers + cost.feed_forward_layers == blocks == cost.blocks
    assert cost.parameters == blocks * (17 * 2 + 6)
    assert cost.stored_bytes == sum(a.nbytes for _, a in soft.network.arrays())
