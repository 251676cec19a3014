"""Certificates of sparse networks: proved from masks and weights, and from nothing else."""

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.certify.tampered import write_weights
from tests.plans import constants_of

import everyformer as ef
from everyformer import patterns
from everyformer.certify.shifts.context import Ids, run_attention, to_real
from everyformer.certify.shifts.position_layer import constant_layer
from everyformer.certify.undecided import Undecided
from everyformer.certify.verify import NETWORK_FILE
from everyformer.certify.weights import StageWeights, read_weights
from everyformer.construct.shifts.sparse import sparse_ids
from everyformer.construct.shifts.sparse_constants import SparseConstants
from everyformer.errors import CertificateError
from everyformer.model.forward import attention_layer
from everyformer.patterns import Pattern
from everyformer.targets import reverse
from everyformer.verdict import Verdict

Arrays = dict[str, np.ndarray]
Change = Callable[[Arrays], None]
WINDOW = patterns.window(3, 1)
AXIAL = patterns.axial(2, 2)


@cache
def built(pattern: Pattern = WINDOW, K: int = 4) -> ef.Built:
    return ef.construct(reverse(pattern.n, 1), grid=K, method=ef.SparseShifts(pattern))


def key(network: ef.Network, stage: str, name: str) -> str:
    half = "feed_forward" if name in ("W_1", "b_1", "W_2", "b_2") else "attention"
    place = [one.name for one in network.stages].index(stage)
    return f"stages.{place}.{half}.{name}"


def saved(made: ef.Built, folder: Path, change: Change | None = None) -> ef.Verification:
    """Verify the network with other arrays, under its old certificate and a new hash."""
    made.save(folder)
    if change is not None:
        arrays = {name: array.copy() for name, array in made.network.arrays()}
        change(arrays)
        free = replace(made.network.architecture, pattern=None)
        changed = replace(made.network, architecture=free).with_arrays(arrays)
        write_weights(folder, changed)
    return ef.verify(folder)


@pytest.mark.parametrize(
    "pattern",
    [
        *[patterns.ring(3), patterns.star(4), patterns.strided(4, 2), AXIAL],
        *[patterns.dense(3), patterns.window(4, 1)],
    ],
    ids=lambda pattern: pattern.name,
)
def test_bounds_are_proved_and_hold(pattern: Pattern, tmp_path: Path) -> None:
    """Both claims, within a hair of the distance itself, sqrt(n/12)/K."""
    made = built(pattern, 2)
    certificate = made.certificate
    assert certificate.verdict is Verdict.PROVED
    assert certificate.claims == ("real", "float64")
    assert certificate.bound is not None
    distance = np.sqrt(pattern.n / 12) / 2
    assert distance <= float(certificate.bound.value) <= distance * (1 + 1e-5)
    found = saved(made, tmp_path)
    assert found.verdict is Verdict.PROVED
    assert found.bound is not None
    assert found.bound.value == certificate.bound.value
    x = np.random.default_rng(0).random((500, pattern.n, 1))
    gap = made.network(x, executor="reference") - made.target(x)
    sampled = np.sqrt((gap**2).sum(axis=(1, 2)).mean())
    assert sampled == pytest.approx(distance, rel=0.1)


def test_a_tolerance_chooses_the_grid() -> None:
    made = ef.construct(reverse(3, 1), tol=0.13, method=ef.SparseShifts(patterns.ring(3)))
    assert made.plan.grid == 4
    assert made.certificate.verdict is Verdict.PROVED
    assert made.certificate.eps == Fraction("0.13")


def test_the_modified_network_is_proved_too() -> None:
    made = ef.construct(
        reverse(4, 1), grid=2, method=ef.SparseShifts(AXIAL, softened=False)
    )
    assert made.certificate.verdict is Verdict.PROVED
    assert made.certificate.claims == ("real",)


def unhear(stage: str, layer: int, token: int, other: int) -> Change:
    """Remove or add an edge: token hears other no longer, or from now on."""

    def change(arrays: Arrays) -> None:
        mask = arrays[key(built().network, stage, "mask")]
        mask[layer, token, other] ^= True

    return change


def scaled(stage: str, name: str, factor: float) -> Change:
    def change(arrays: Arrays) -> None:
        arrays[key(built().network, stage, name)] *= factor

    return change


def other_gamma(arrays: Arrays) -> None:
    """Positions along another path than that of the chain."""
    arrays["positions"] = arrays["positions"][[1, 0, 2]]


def other_value(arrays: Arrays) -> None:
    """One entry of the table, by a tenth: sqrt(0.01 / 64) above what was claimed."""
    columns = arrays[key(built().network, "value map", "W_2")]
    knots = -arrays[key(built().network, "value map", "b_1")]
    signs = np.array([1.0, -1.0, -1.0, 1.0])
    columns[10] += 0.1 / (knots[10, 1] - knots[10, 0]) * signs


def other_bias(arrays: Arrays) -> None:
    """The window of the chain one cell too high: its first column is missed."""
    arrays[key(built().network, "chain shifts", "b_Q")][1] += 0.25


TAMPERED: dict[str, Change] = {
    "an edge of the path removed": unhear("chain shifts", 1, 2, 1),
    "a self-loop of the chain removed": unhear("chain shifts", 0, 1, 1),
    "an edge of the maxima removed": unhear("max shifts", 0, 1, 2),
    "an edge of the maxima added": unhear("max shifts", 0, 0, 2),
    "C doubled": scaled("max shifts", "W_O", 2.0),
    "a halved": scaled("chain shifts", "W_O", 0.5),
    "gamma": other_gamma,
    "a table entry": other_value,
    "a window": other_bias,
    "sharpness": scaled("chain shifts", "W_K", 2.0**-12),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_tampered_networks_are_not_proved(name: str, tmp_path: Path) -> None:
    found = saved(built(), tmp_path, TAMPERED[name])
    assert found.verdict is not Verdict.PROVED
    assert found.reasons


def test_an_edge_that_nobody_uses_may_change(tmp_path: Path) -> None:
    """The control of the controls: masks of layers with W_O = 0 mean nothing."""
    made = built(AXIAL, 2)
    chain = key(made.network, "chain shifts", "mask")
    idle = ~(dict(made.network.arrays())[chain.replace("mask", "W_O")] != 0).any((1, 2, 3))
    assert idle.any()

    def change(arrays: Arrays) -> None:
        arrays[chain][np.argmax(idle)] = True

    assert saved(made, tmp_path, change).verdict is Verdict.PROVED


def test_ids_under_masks_are_those_of_the_recursion(tmp_path: Path) -> None:
    made = built(AXIAL, 4)
    made.network.save(tmp_path / NETWORK_FILE)
    weights = read_weights(tmp_path / NETWORK_FILE)
    c = constants_of(made.plan)
    assert isinstance(c, SparseConstants)
    columns = c.grid.all_sequences()
    numbers = columns[..., None] + np.array(c.position_ids)[:, None]
    everyone = np.ones(columns.shape, dtype=bool)
    ids = Ids(numbers, c.K, everyone, np.zeros(numbers.shape), "float64")
    for stage in weights.stages:
        if stage.half == "attention":
            ids = run_attention(stage, ids, softmax=True)
    assert (ids.numbers[..., 0] == sparse_ids(c, columns)).all()
    assert not ids.error.any()


def test_what_softmax_leaks_under_a_mask_is_bounded() -> None:
    """A softer softmax, whose leak float64 shows: below the bound, and not far below."""
    made = built(AXIAL, 2)
    c = constants_of(made.plan)
    stack = made.network.stages[1].attention
    assert made.network.stages[1].name == "chain shifts"
    assert stack is not None
    soft = replace(stack, W_K=stack.W_K / 512)
    names = ("W_Q", "b_Q", "W_K", "W_V", "W_O", "mask")
    stage = StageWeights("soft", "attention", {name: getattr(soft, name) for name in names})
    columns = c.grid.all_sequences()
    numbers = columns[..., None] + np.array(c.position_ids)[:, None]
    everyone = np.ones(columns.shape, dtype=bool)
    start = Ids(numbers, c.K, everyone, np.zeros(numbers.shape), "real")
    found = run_attention(stage, start, softmax=True)
    state = numbers / c.K
    for layer in range(soft.layers):
        state = attention_layer(soft, layer, state, "softmax")
    gap, bound = np.abs(state - found.numbers / c.K), to_real(found.error)
    assert gap.max() > 1e-7
    assert (gap <= bound + 1e-12).all()
    assert bound.max() <= 10 * gap.max()
    # Were all tokens heard, nearer ones would be among them, and nothing could be said.
    loud = {**stage.arrays, "mask": np.ones_like(soft.mask)}
    with pytest.raises(Undecided, match="scores are too close"):
        run_attention(replace(stage, arrays=loud), start, softmax=True)


def test_a_network_with_a_mask_is_never_taken_for_equivariant(tmp_path: Path) -> None:
    built().network.save(tmp_path / NETWORK_FILE)
    weights = read_weights(tmp_path / NETWORK_FILE)
    assert replace(weights, positions=None).positional


def test_sparse_attention_in_front_of_the_grid_is_not_followed() -> None:
    arrays = {
        "W_O": np.zeros((1, 1, 1, 1)),
        "mask": np.array([[[True, False], [True, True]]]),
    }
    stage = StageWeights("first", "attention", arrays)
    with pytest.raises(Undecided, match="sparse attention before the grid"):
        constant_layer(stage, 0, 2)


def test_files_with_impossible_masks_are_no_weights(tmp_path: Path) -> None:
    """A token that attends to nothing, under a header that is right otherwise."""
    path = tmp_path / NETWORK_FILE
    built().network.save(path)
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    name = key(built().network, "max shifts", "mask")
    start = header[name]["data_offsets"][0] + 8 + int.from_bytes(data[:8], "little")
    path.write_bytes(data[:start] + bytes(3) + data[start + 3 :])
    with pytest.raises(CertificateError, match="nothing to attend to"):
        read_weights(path)
