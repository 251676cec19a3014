"""What the prover reads off a network with prefix tokens; tampering is not PROVED."""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.certify.partition.partition_map import errors_sampled, lattice, waves
from tests.plans import table_of

import everyformer as ef
from everyformer.certify.partition import prove as partition_prove
from everyformer.certify.partition.reading import PartitionReading, read_partition
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import read_weights
from everyformer.construct import certificates
from everyformer.construct.certificates import certify
from everyformer.errors import TargetError
from everyformer.model.network import Network
from everyformer.targets import sort
from everyformer.targets.box import Grid
from everyformer.targets.target import Target

TARGET = waves(2)
K, D, M = 8, 2, 2
TWO = Fraction(2)


@lru_cache
def built() -> ef.Built:
    return ef.construct(TARGET, grid=K, method=ef.Partition(decay=D, margin=M))


def reading_of(
    network: Network, folder: Path, grid: Grid | None = None
) -> PartitionReading:
    network.save(folder / "network.safetensors")
    weights = read_weights(folder / "network.safetensors")
    return read_partition(weights, grid or Grid(K, 2, TARGET.domain))


def test_everything_is_read_off_the_weights(tmp_path: Path) -> None:
    found = reading_of(built().network, tmp_path)
    assert found.lattice == lattice(TARGET, K, D, M)
    assert np.array_equal(found.table, table_of(built()).values.reshape(-1, 2))
    assert found.suppression == 800 + D * 2 / 4
    assert found.table_error == found.offset == 0
    assert 0 < found.eta < Fraction(1, 10**12)
    assert 0 < found.run < Fraction(1, 10**10)


def test_the_float64_run_is_within_its_bound(tmp_path: Path) -> None:
    target = waves(2, 1, (-3.0, 17.0))
    own = ef.construct(target, grid=5, method=ef.Partition(decay=1.5, margin=1))
    found = reading_of(own.network, tmp_path, Grid(5, 2, target.domain))
    x = np.random.default_rng(0).uniform(-3, 17, (200, 2, 1))
    u = [[Fraction(float(v)) / 20 + Fraction(3, 20) for v in s.flat] for s in x[:3]]
    exact = [_exact_average(found, point) for point in u]
    gap = np.abs(own.network(x[:3]).reshape(3, 2) - np.array(exact)).max()
    assert 0 < gap <= float(found.run) + float(2 * found.eta * found.largest)


def _exact_average(found: PartitionReading, u: list[Fraction]) -> list[float]:
    """With weights in long fractions of e^-beta r^2, from exact distances."""
    K, m = found.lattice.grid.cells, found.lattice.margin
    side = [Fraction(k - m, K) for k in range(K + 1 + 2 * m)]
    beta = found.lattice.D * K * K
    weights = [[math.exp(-float(beta * (value - v) ** 2)) for v in side] for value in u]
    shares = np.multiply.outer(*(np.array(w) / math.fsum(w) for w in weights)).ravel()
    return [math.fsum(shares * column) for column in found.table.T]


def test_tokens_in_another_order_are_the_same_function(tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(lattice(TARGET, K, D, M).anchors)
    other = tampered(built().network, lambda a: _reorder(a, order))
    found = reading_of(other, tmp_path)
    assert np.array_equal(found.table, table_of(built()).values.reshape(-1, 2))


Arrays = dict[str, np.ndarray]
SLOTS, SUM = "stages.0.feed_forward.", "stages.1.attention."
AVERAGE, SELECT = "stages.2.attention.", "stages.2.feed_forward."
X, POS, SLOT, Z, KEY, NRM, F = 0, 1, 3, 5, 7, 9, 10
"""First registers of each kind, n = 2, d = 1."""


def _reorder(arrays: Arrays, order: np.ndarray) -> None:
    arrays["registers.prefix"] = arrays["registers.prefix"][order]


def tampered(network: Network, change: Callable[[Arrays], Any]) -> Network:
    arrays = {name: array.copy() for name, array in network.arrays()}
    change(arrays)
    return network.with_arrays(arrays)


def _key_moved_a_step(arrays: Arrays) -> None:
    arrays["registers.prefix"][70, KEY] += 1 / K


def _key_moved_a_little(arrays: Arrays) -> None:
    arrays["registers.prefix"][70, KEY] += 1e-4


def _norm(arrays: Arrays) -> None:
    arrays["registers.prefix"][70, NRM] += 1e-3


def _value(arrays: Arrays) -> None:
    arrays["registers.prefix"][70, F] += 0.5


def _all_values(arrays: Arrays) -> None:
    arrays["registers.prefix"][:, F] += 0.25


def _prefix_writes_a_slot(arrays: Arrays) -> None:
    arrays["registers.prefix"][3, SLOT] = 1.0


def _prefix_is_data(arrays: Arrays) -> None:
    arrays["registers.prefix"][70, NRM] = arrays["registers.start"][0, NRM]


def _small_suppression(arrays: Arrays) -> None:
    arrays["registers.start"][:, NRM] = 0.01


def _no_suppression(arrays: Arrays) -> None:
    arrays["registers.start"][:, NRM] = -1.0


def _temperature(arrays: Arrays) -> None:
    arrays[AVERAGE + "W_K"][0, 0, :2] *= 1.05


def _both_temperatures(arrays: Arrays) -> None:
    arrays[AVERAGE + "W_K"] *= 3


def _query(arrays: Arrays) -> None:
    arrays[AVERAGE + "W_Q"][0, 0, 0, Z + 1] = 0.1


def _query_bias(arrays: Arrays) -> None:
    arrays[AVERAGE + "b_Q"][0, 0, 0] = 0.05


def _keys_hear_the_mean(arrays: Arrays) -> None:
    arrays[AVERAGE + "W_K"][0, 0, 0, Z] = 1e-6


def _slot_threshold(arrays: Arrays) -> None:
    arrays[SLOTS + "b_1"][0, 0] = -0.9


def _slot_of_another(arrays: Arrays) -> None:
    arrays[SLOTS + "W_2"][0, SLOT, 0] = 0.0
    arrays[SLOTS + "W_2"][0, SLOT + 1, 0] = 1.0


def _slot_shift(arrays: Arrays) -> None:
    arrays[SLOTS + "b_2"][0, SLOT] = 1e-6


def _factor_of_the_mean(arrays: Arrays) -> None:
    arrays[SUM + "W_O"] *= 1.01


def _mean_with_scores(arrays: Arrays) -> None:
    arrays[SUM + "W_Q"][0, 0, 0, POS] = 1.0
    arrays[SUM + "W_K"][0, 0, 0, POS] = 1.0


def _select_too_narrow(arrays: Arrays) -> None:
    arrays[SELECT + "b_1"][0] *= 0.5
    arrays[SELECT + "W_1"][0, :, POS : POS + 2] *= 0.5


def _select_unbalanced(arrays: Arrays) -> None:
    arrays[SELECT + "W_2"][0, X, 2] *= 1.01


def _select_swapped(arrays: Arrays) -> None:
    W_1 = arrays[SELECT + "W_1"][0]
    W_1[[0, 1], F : F + 2] = W_1[[1, 0], F : F + 2]


def _small_numbers(arrays: Arrays) -> None:
    arrays["registers.start"][:, SLOT] = 2.0**-540


def _large_numbers(arrays: Arrays) -> None:
    arrays["registers.prefix"][:, Z] = 2.0**900


def _read_out(arrays: Arrays) -> None:
    arrays["registers.W_out"][0, SLOT] = -0.99


def _read_out_scaled(arrays: Arrays) -> None:
    arrays["registers.W_out"] *= 1.1


def _read_in(arrays: Arrays) -> None:
    arrays["registers.start"][1, X] = 0.01


def _positions(arrays: Arrays) -> None:
    start = arrays["registers.start"]
    start[:, POS : POS + 2] = start[::-1, POS : POS + 2].copy()


TAMPERED = [
    _key_moved_a_step,
    _key_moved_a_little,
    _norm,
    _value,
    _all_values,
    _prefix_writes_a_slot,
    _prefix_is_data,
    _small_numbers,
    _large_numbers,
    _small_suppression,
    _no_suppression,
    _temperature,
    _both_temperatures,
    _query,
    _query_bias,
    _keys_hear_the_mean,
    _slot_threshold,
    _slot_of_another,
    _slot_shift,
    _factor_of_the_mean,
    _mean_with_scores,
    _select_too_narrow,
    _select_unbalanced,
    _select_swapped,
    _read_out,
    _read_out_scaled,
    _read_in,
    _positions,
]


def _not_measured(*_: object) -> float:
    """In place of a run of all P + n queries, where a prefix is not deaf any more."""
    return 1.0


@pytest.mark.rows(14)
@pytest.mark.parametrize("change", TAMPERED)
def test_tampering_is_not_proved(
    change: Callable[[Arrays], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "distance_sampled", _not_measured)
    eps = built().certificate.eps
    other = tampered(built().network, change)
    found = certify(other, TARGET, grid=K, p=TWO, eps=eps)
    assert found.verdict is not ef.Verdict.PROVED
    # If a bound is found it is one: of the network as it is now.
    if found.bound is not None:
        x = np.random.default_rng(0).random((500, 2, 1))
        gap = (np.abs(TARGET(x) - other(x)) ** 2).sum(axis=(1, 2)).mean() ** 0.5
        assert gap <= float(found.bound.value)  # sampled
    else:
        assert found.obstacles


def test_the_obstacle_is_named(tmp_path: Path) -> None:
    cases = {
        _slot_threshold: "slots: hidden unit 1 bends",
        _prefix_writes_a_slot: "sum: its mean reads what tokens before",
        _keys_hear_the_mean: "average and select: keys or values read what the mean",
        _key_moved_a_step: "average and select: two tokens",
        _mean_with_scores: "sum: head 1 has scores that are not 0",
        _select_too_narrow: "average and select: hidden unit",
    }
    for change, text in cases.items():
        with pytest.raises(Undecided, match=text):
            reading_of(tampered(built().network, change), tmp_path)


def _wider_select(arrays: Arrays) -> None:
    """R twice as large: the same function."""
    arrays[SELECT + "b_1"][0] *= 2
    arrays[SELECT + "W_1"][0, :, POS : POS + 2] *= 2


def test_values_moved_together_are_refuted(tmp_path: Path) -> None:
    wider = tampered(built().network, _wider_select)
    assert reading_of(wider, tmp_path).offset == 0
    other = tampered(wider, _all_values)
    for p, least in ((TWO, 0.2), (None, 0.2)):
        found = certify(other, TARGET, grid=K, p=p, eps=Fraction(1, 10))
        assert found.bound is not None
        assert found.bound > Fraction(1, 4)
        folder = tmp_path / str(p)
        folder.mkdir()
        other.save(folder / "network.safetensors")
        found.save(folder)
        verification = ef.verify(folder)
        assert verification.verdict is ef.Verdict.REFUTED
        assert float(verification.reasons[0].split("at least ")[1].split(",")[0]) > least


@pytest.mark.parametrize("D", [1, 2, 8])
def test_bounds_are_above_the_distance(D: int) -> None:
    own = ef.construct(TARGET, grid=12, method=ef.Partition(decay=D, margin=2))
    gaps = errors_sampled(TARGET, lattice(TARGET, 12, D, 2))
    for p in (TWO, None):
        found = certify(own.network, TARGET, grid=12, p=p)
        assert found.verdict is ef.Verdict.PROVED
        assert found.bound is not None
        assert found.bound.is_consistent()
        q = float(p or 1)
        sampled = gaps.max() if p is None else (gaps**q).sum(axis=1).mean() ** (1 / q)
        assert sampled <= float(found.bound.value) <= 3.5 * sampled
        assert found.float64_bound is not None
        extra = found.float64_bound.value - found.bound.value
        assert 0 < extra < Fraction(1, 10**9)


@pytest.mark.parametrize("p", [2, math.inf])
def test_saved_and_verified(tmp_path: Path, p: float) -> None:
    own = ef.construct(TARGET, tol=0.1, p=p, method=ef.Partition(margin=2))
    own.save(tmp_path)
    found = ef.verify(tmp_path)
    assert found.verdict is ef.Verdict.PROVED
    assert found.bound is not None
    assert own.certificate.bound is not None
    assert found.bound.value == own.certificate.bound.value
    claim = found.to_json()["claim"]
    assert (claim["metric"], claim["p"]) == (("d_p", "2") if p == 2 else ("sup", "inf"))
    assert ef.verify(tmp_path, TARGET).verdict is ef.Verdict.PROVED
    moved = waves(2)
    shifted = Target(lambda x: moved.function(x) + 0.5, 2, 1, name="waves")
    assert ef.verify(tmp_path, shifted).verdict is ef.Verdict.REFUTED


def test_a_declared_target(tmp_path: Path) -> None:
    target = sort(2).untraced()
    own = ef.construct(target, tol=0.2, method="partition")
    own.save(tmp_path)
    assert own.certificate.is_conditional
    assert ef.verify(tmp_path).verdict is ef.Verdict.PROVED
    assert ef.verify(tmp_path, target).verdict is ef.Verdict.PROVED
    false = Target(lambda x: 9 * np.sort(x, axis=-2), 2, 1, lipschitz=1.0, name="sort")
    with pytest.raises(TargetError, match=r"sort declares .* which is false"):
        ef.verify(tmp_path, false)
    other = Target(lambda x: 9 + np.sort(x, axis=-2), 2, 1, lipschitz=1.0, name="sort")
    assert ef.verify(tmp_path, other).verdict is ef.Verdict.REFUTED


def test_shards_change_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = ef.construct(waves(2), grid=10, method=ef.Partition(decay=1, margin=2))
    whole = own.certify()
    monkeypatch.setattr(partition_prove, "SHARD_BOXES", 2**12)
    computing = ef.Computing(work=tmp_path / "shards")
    parts = own.certify(computing=computing)
    files = len(list((tmp_path / "shards").iterdir()))
    assert files == 9  # three shards: values as it is and clipped, cells
    assert parts.bound is not None
    assert whole.bound is not None
    assert parts.bound.terms[1:] == whole.bound.terms[1:]
    # fsum rounds up once for each shard.
    ratio = parts.bound.value / whole.bound.value
    assert abs(ratio - 1) < Fraction(1, 2**40)
    again = own.certify(computing=computing)
    assert again.bound == parts.bound
    assert len(list((tmp_path / "shards").iterdir())) == files
