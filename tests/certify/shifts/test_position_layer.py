"""What the prover says a position layer adds, against the layer itself; tampering."""

import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everyformer as ef
from everyformer.certify.shifts.position_layer import (
    Addition,
    additions,
    carried_rounding,
    constant_layer,
)
from everyformer.certify.shifts.quantiser import find_plateaus
from everyformer.certify.undecided import Undecided
from everyformer.certify.verify import NETWORK_FILE
from everyformer.certify.weights import StageWeights, Weights, read_weights, to_fractions
from everyformer.errors import CertificateError
from everyformer.model.forward import attention_layer
from everyformer.model.network import Network
from everyformer.model.stacks import AttentionStack, toeplitz
from everyformer.targets import GALLERY, prefix_mean, reverse, soft_attention
from everyformer.targets.target import Target
from everyformer.verdict import Verdict

Change = Callable[[dict[str, np.ndarray]], None]


@cache
def built(name: str, n: int = 3, grid: int = 2, *, softened: bool = True) -> ef.Built:
    target = GALLERY[name](n, 1)
    return ef.construct(target, grid=grid, method=ef.UrpeShifts(softened=softened))


def stored(network: Network) -> Weights:
    with tempfile.TemporaryDirectory() as folder:
        network.save(Path(folder) / "n")
        return read_weights(Path(folder) / "n")


def random_layer(seed: int, n: int, d: int, h: int, m: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    zeros = np.zeros((1, h, m, d))
    return {
        "W_Q": zeros,
        "b_Q": zeros[..., 0],
        "W_K": zeros,
        "W_V": zeros,
        "W_O": rng.normal(size=(1, h, d, m)) * 2.0 ** rng.integers(-5, 6, (1, h, d, m)),
        "b_V": rng.normal(size=(1, h, m)),
        "gain": rng.normal(size=(1, h, 2 * n - 1)),
    }


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 2), st.integers(1, 3))
def test_what_a_layer_adds(seed: int, n: int, d: int, h: int) -> None:
    """Exactly, by hardmax in rationals; and within the rounding, as float64 runs it."""
    arrays = random_layer(seed, n, d, h, m=2)
    stage = StageWeights("first", "attention", arrays)
    amount, rounding = constant_layer(stage, 0, n)
    exact = AttentionStack(**{k: to_fractions(v) for k, v in arrays.items()})
    x = np.random.default_rng(seed).normal(size=(n, d))
    added = attention_layer(exact, 0, to_fractions(x), "hardmax") - to_fractions(x)
    assert (added == amount).all()
    zero = np.zeros((n, d))
    run = attention_layer(AttentionStack(**arrays), 0, zero, "softmax")
    assert (abs(to_fractions(run) - amount) <= rounding).all()
    # As small as it should be: n + 13 roundings of the sizes of the terms.
    C = toeplitz(np.abs(arrays["gain"][0]), n).sum(axis=-1) / n  # [h, n]
    sizes = np.abs(arrays["W_O"][0]) @ np.abs(arrays["b_V"][0])[..., None]  # [h, d, 1]
    terms = np.einsum("hn,hd->nd", C, sizes[..., 0])
    assert (rounding.astype(float) <= (n + 14) * 2.0**-53 * terms).all()


def test_heads_that_write_nothing_may_be_anything() -> None:
    arrays = random_layer(0, 3, 2, 2, m=1)
    both = constant_layer(StageWeights("first", "attention", arrays), 0, 3)
    arrays["W_O"] = arrays["W_O"].copy()
    arrays["W_O"][0, 1] = 0
    alone = constant_layer(StageWeights("first", "attention", arrays), 0, 3)
    assert (alone[0] != both[0]).any()
    wild = arrays | {"W_Q": np.ones((1, 2, 1, 2)) * [[[0, 0]], [[1, 1]]]}
    found = constant_layer(StageWeights("first", "attention", wild), 0, 3)
    assert (found[0] == alone[0]).all()


@pytest.mark.parametrize("name", ["W_Q", "b_Q", "W_K", "W_V"])
def test_a_head_that_looks_at_tokens_is_undecided(name: str) -> None:
    arrays = random_layer(1, 3, 2, 2, m=1)
    changed = arrays[name].copy()
    changed[(0, 1, *([0] * (changed.ndim - 2)))] = 2.0**-900
    stage = StageWeights("first", "attention", arrays | {name: changed})
    with pytest.raises(Undecided, match=f"first: .*{name} of head 2 in layer 0 is not 0"):
        constant_layer(stage, 0, 3)


def test_without_bias_or_gain() -> None:
    arrays = random_layer(2, 3, 2, 2, m=1)
    plain = {k: v for k, v in arrays.items() if k != "b_V"}
    amount, rounding = constant_layer(StageWeights("x", "attention", plain), 0, 3)
    assert not amount.any()
    assert not rounding.any()
    ones = arrays | {"gain": np.ones_like(arrays["gain"])}
    without = {k: v for k, v in arrays.items() if k != "gain"}
    pair = [
        constant_layer(StageWeights("x", "attention", a), 0, 3)[0] for a in (ones, without)
    ]
    assert (pair[0] == pair[1]).all()
    assert (pair[0] == pair[0][0]).all()  # every token gets the same


@pytest.mark.parametrize("softened", [True, False])
def test_additions_are_the_positions_of_theorem_3(softened: bool) -> None:
    weights = stored(built("reverse", softened=softened).network)
    added, stages = additions(weights, weights.stages)
    assert stages == 1
    assert weights.positional
    assert weights.positions is None
    for (j, _), (step,) in added.items():
        E = Fraction(3 * j, 2)
        if softened:
            E += Fraction(1, 2**40)  # all tokens are lifted by the guard
            assert E <= step.amount <= E * (1 + Fraction(1, 2**43))
            assert 0 < step.rounding <= E * Fraction(20, 2**53)
        else:
            assert step.amount == E


def test_rounding_of_positions_is_what_it_was() -> None:
    """x is rounded, then x + E is: as for positions, with what the layer rounds on top."""
    size, u = Fraction(3), Fraction(1, 2**53)
    assert carried_rounding(size, ()) == (0, u * size)
    nothing = Addition(Fraction(0), Fraction(0))
    assert carried_rounding(size, (nothing,)) == (0, u * size)
    amount, carried = carried_rounding(size, (Addition(Fraction(5), Fraction(0)),))
    assert (amount, carried) == (5, u * size + u * (size + 5 + u * size))
    off = Fraction(1, 2**40)
    _, more = carried_rounding(size, (Addition(Fraction(5), off),))
    assert more == carried + off * (1 + u)


def test_plateaus_are_those_of_the_dense_network() -> None:
    """The quantised states are equal; the plateaus are shorter by what is lost."""
    dense = ef.construct(reverse(3, 1), grid=2)
    box = dense.target.domain
    one, other = (
        find_plateaus(stored(network), box, 2)
        for network in (dense.network, built("reverse").network)
    )
    assert (one.values == other.values).all()
    assert other.stages == one.stages + 1
    assert one.ramps_run is not None
    assert other.ramps_run is not None
    assert (other.ramps >= one.ramps).all()
    assert ((other.ramps_run - one.ramps_run)[1:] > 0).all()
    assert (other.ramps_run - one.ramps_run <= Fraction(1, 2**38)).all()


def test_float64_runs_reach_the_plateaus() -> None:
    """Points at the very ends of what the prover counts as plateau, n (1/n) != 1."""
    network = built("prefix_mean").network
    weights = stored(network)
    added, _ = additions(weights, weights.stages)
    expected = find_plateaus(weights, built("prefix_mean").target.domain, 2).values
    names = [stage.name for stage in network.stages]
    first = Network(network.architecture, network.stages[: names.index("quantise") + 1])
    for j in range(3):
        amount, carried = carried_rounding(Fraction(1), added[j, 0])
        for k in range(2):
            start = Fraction(3 * j + k, 2) - amount
            start = max(start, Fraction(0))
            end = Fraction(3 * j + k + 1, 2) - amount - Fraction(1, 2**30)
            x = np.zeros((2, 3, 1))
            x[0, j] = float(start + 2 * carried) if start or j == 0 else 0.0
            x[1, j] = float(end - 2 * carried)
            z = first(x, executor="reference")[:, j, 0]
            assert z.tolist() == [float(expected[j, 0, k])] * 2, (j, k)


@pytest.mark.rows(3)
@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        (reverse(2, 1), {"tol": 0.2}),
        (prefix_mean(3, 1), {"tol": 0.3}),
        (prefix_mean(3, 1), {"tol": 0.3, "exact": True}),
        (soft_attention(2, 1), {"tol": 0.3}),
        (soft_attention(2, 1).untraced(), {"grid": 4}),
        (Target(lambda x: x[..., ::-1, :] ** 2, 3, 1, domain=[(-1, 0.7)]), {"grid": 4}),
        (reverse(1, 2), {"grid": 4}),
    ],
)
def test_certificates_are_proved_and_verified(
    target: Target, arguments: dict[str, Any], tmp_path: Path
) -> None:
    given = dict(arguments)
    softened = not given.pop("exact", False)
    made = ef.construct(target, method=ef.UrpeShifts(softened=softened), **given)
    certificate = made.certificate
    assert certificate.verdict is Verdict.PROVED
    assert certificate.claims == (("real", "float64") if softened else ("real",))
    made.save(tmp_path)
    found = ef.verify(tmp_path)
    assert found.verdict is Verdict.PROVED, found.reasons
    method = ef.SelectiveShifts(positional=True, softened=softened)
    dense = ef.construct(target, method=method, **given).certificate
    for ours, theirs in (
        (found.bound, dense.bound),
        (found.float64_bound, dense.float64_bound),
    ):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            # The same table on the same cells, but for where the cells begin.
            assert abs(ours.value - theirs.value) <= theirs.value * Fraction(1, 1000)


def scale_gain(offset: int, factor: float) -> Change:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays["gain"][0, 0, offset + 2] *= factor  # n = 3

    return change


def set_all(name: str, value: float) -> Change:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[name][0, 0] = value

    return change


def add_to_last(name: str, value: float) -> Change:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[name][0, 0].reshape(-1)[-1] += value

    return change


FIRST = "position layer"
CHANGES: dict[str, tuple[Change, str]] = {
    "positions half as far": (scale_gain(1, 0.5), "bound"),
    "positions apart": (scale_gain(2, 1.5), "bound"),
    "all ones": (set_all("gain", 1.0), "quantise"),
    "all zeros": (set_all("gain", 0.0), "global shift"),
    "transposed": (lambda a: a.update(gain=a["gain"][..., ::-1].copy()), "bound"),
    "output": (lambda a: a.update(W_O=a["W_O"] * 0.75), "bound"),
    "value": (set_all("b_V", 0.5), "bound"),
    "query": (add_to_last("W_Q", 1.0), FIRST),
    "query bias": (add_to_last("b_Q", 1.0), FIRST),
    "key": (add_to_last("W_K", 1.0), FIRST),
    "value of the token": (add_to_last("W_V", 2.0**-40), FIRST),
}


def tampered(network: Network, change: Change) -> Network:
    arrays = {name: array.copy() for name, array in network.arrays()}
    prefix = "stages.0.attention."
    own = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
    change(own)
    return network.with_arrays(arrays | {prefix + name: v for name, v in own.items()})


def write(folder: Path, network: Network) -> None:
    """Other weights under the same certificate, which is told their hash."""
    network.save(folder / NETWORK_FILE)
    place = folder / "certificate.json"
    values = json.loads(place.read_text())
    data = (folder / NETWORK_FILE).read_bytes()
    values["weights"]["sha256"] = hashlib.sha256(data).hexdigest()
    place.write_text(json.dumps(values))


@pytest.mark.rows(11)
@pytest.mark.parametrize("softened", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_tampering_is_not_proved(name: str, softened: bool, tmp_path: Path) -> None:
    change, stage = CHANGES[name]
    made = built("prefix_mean", softened=softened)
    made.save(tmp_path)
    assert ef.verify(tmp_path).verdict is Verdict.PROVED
    network = tampered(made.network, change)
    if not softened:
        network = tampered(made.network, lambda arrays: exactly(change, arrays))
    write(tmp_path, network)
    found = ef.verify(tmp_path)
    assert found.verdict is not Verdict.PROVED, name
    begins = [reason.removeprefix("float64, ").split(":")[0] for reason in found.reasons]
    starts = [begin.strip('"') for begin in begins]  # the file names its stages
    if softened:
        assert stage in starts, found.reasons


def test_a_position_moved_by_a_little_costs_a_little(tmp_path: Path) -> None:
    """Cells begin 2^-21 lower: that much more of them is ramp, and no longer proved."""
    made = built("prefix_mean")
    made.save(tmp_path)
    before = ef.verify(tmp_path)
    write(tmp_path, tampered(made.network, scale_gain(2, 1 + 2.0**-20)))
    after = ef.verify(tmp_path)
    assert before.bound is not None
    assert after.bound is not None
    assert before.bound.value * Fraction(10**6 + 1, 10**6) < after.bound.value


def test_what_stays_true_is_still_proved(tmp_path: Path) -> None:
    """Positions counted backwards: the same network with x and y reversed.

    For the target that reverses the sequence that is the same function.
    """
    made = built("reverse")
    made.save(tmp_path)
    write(tmp_path, tampered(made.network, CHANGES["transposed"][0]))
    assert ef.verify(tmp_path).verdict is Verdict.PROVED


def exactly(change: Change, arrays: dict[str, np.ndarray]) -> None:
    """The same change of rationals."""
    floats = {name: array.astype(np.float64) for name, array in arrays.items()}
    change(floats)
    arrays.update({name: to_fractions(array) for name, array in floats.items()})


@pytest.mark.parametrize("stage_name", ["selective shifts", "global shift"])
def test_later_layers_must_have_no_gain(stage_name: str, tmp_path: Path) -> None:
    """C = 1 and b_V = 0 change nothing; anything else is not followed."""
    made = built("reverse")
    made.save(tmp_path)
    stages = list(made.network.stages)
    index = [stage.name for stage in stages].index(stage_name)
    stack = stages[index].attention
    assert stack is not None
    gain = np.ones((stack.layers, 2, 5))
    b_V = np.zeros((stack.layers, 2, 1))
    for spoil in (None, "gain", "b_V"):
        if spoil is not None:
            {"gain": gain, "b_V": b_V}[spoil][-1, 0, 0] = 0.5
        urpe = replace(stack, gain=gain.copy(), b_V=b_V.copy())
        stages[index] = replace(stages[index], attention=urpe)
        write(tmp_path, replace(made.network, stages=tuple(stages)))
        found = ef.verify(tmp_path)
        if spoil is None:
            assert found.verdict is Verdict.PROVED
        else:
            assert found.verdict is Verdict.UNKNOWN
            assert found.reasons[-1].removeprefix("float64, ").startswith(f'"{stage_name}"')


def test_a_gain_makes_every_cell_count(tmp_path: Path) -> None:
    """An equivariant f: orbits would do without a gain, and must not be used with one."""
    made = ef.construct(soft_attention(2, 1), grid=4, method="urpe")
    assert made.certificate.cells["representatives"] == 16
    equivariant = ef.construct(soft_attention(2, 1), grid=4)
    assert equivariant.certificate.cells["representatives"] == 10


def test_wrong_shapes_and_versions_are_refused(tmp_path: Path) -> None:
    network = built("reverse").network
    path = tmp_path / "n"
    network.save(path)
    data = path.read_bytes()
    older = data.replace(b'{\\"version\\": 2', b'{\\"version\\": 1')
    assert older != data
    path.write_bytes(older)
    with pytest.raises(CertificateError, match="format version 1, not 2"):
        read_weights(path)
    text = data.replace(b'\\"seq_len\\": 3', b'\\"seq_len\\": 2')
    assert text != data
    path.write_bytes(text)
    with pytest.raises(CertificateError, match="a gain of 5 offsets, but 2 tokens have 3"):
        read_weights(path)
