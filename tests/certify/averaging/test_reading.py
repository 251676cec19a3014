"""Certificates of averaging attention: above the distance; tampering is not PROVED."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plans import grid_plan, table_of

import everyformer as ef
from everyformer.certify.averaging.reading import read_registers
from everyformer.certify.weights import read_weights
from everyformer.construct.averaging.layers import Variant
from everyformer.construct.certificates import certify
from everyformer.errors import CertificateError
from everyformer.model.network import Network
from everyformer.targets import GALLERY, soft_attention
from everyformer.targets.target import Target


def with_positions(x: np.ndarray) -> np.ndarray:
    j = np.arange(x.shape[-2])[:, None]
    return np.sin(3 * x + j) * x.mean(axis=(-2, -1), keepdims=True) + x**2 / 2


TARGET = Target(with_positions, 2, 1)


def built_with(variant: Variant = "wide", grid: int = 8) -> ef.Built:
    return ef.construct(TARGET, grid=grid, method=ef.Averaging(variant=variant))


@pytest.mark.rows(4)
@pytest.mark.parametrize("name", sorted(GALLERY))
def test_bounds_are_above_the_distance_and_close_to_it(name: str) -> None:
    for n, d, K in ((2, 1, 8), (2, 2, 3)):
        built = ef.construct(GALLERY[name](n, d), grid=K, method="averaging")
        certificate = built.certificate
        assert certificate.verdict is ef.Verdict.PROVED
        assert certificate.claims == ("real", "float64")
        assert certificate.bound is not None
        assert certificate.float64_bound is not None
        cube = np.random.default_rng(0).random((20_000, n, d))
        low, high = (
            np.asarray(end) for end in (built.target.domain.lows, built.target.domain.highs)
        )
        x = low + (high - low) * cube
        gap = (np.abs(built.target(x) - built.network(x)) ** 2).sum(axis=(1, 2)).mean()
        sampled = (gap * float(built.target.domain.volume(n))) ** 0.5
        assert (
            sampled * 0.98
            <= float(certificate.bound.value)
            <= float(certificate.float64_bound.value)
        )
        if name not in {"hard_max", "sort", "median"} and d == 1:
            assert float(certificate.float64_bound.value) <= 4 * sampled + 1e-2


def test_the_values_of_the_specification() -> None:
    """Below .014701, the certified d_2 of the specification at K = 64."""
    for variant in ("wide", "narrow", "two-step"):
        bound = built_with(variant, 64).certificate.float64_bound
        assert bound is not None
        assert 0.0069 < float(bound.value) < 0.014701


def test_saved_and_verified(tmp_path: Path) -> None:
    for k, variant in enumerate(("wide", "narrow")):
        built = built_with(variant)
        built.save(tmp_path / str(k))
        assert ef.verify(tmp_path / str(k)).verdict is ef.Verdict.PROVED
    equal = ef.construct(soft_attention(3, 1), grid=4, method="averaging")
    equal.save(tmp_path / "equivariant")
    assert ef.verify(tmp_path / "equivariant").verdict is ef.Verdict.PROVED
    (tmp_path / "0/network.safetensors").write_bytes(
        (tmp_path / "1/network.safetensors").read_bytes()
    )
    with pytest.raises(CertificateError, match="sha256"):
        ef.verify(tmp_path / "0")


Arrays = dict[str, np.ndarray]
DIGITS, LAST, SUM = (
    "stages.0.feed_forward.",
    "stages.1.feed_forward.",
    "stages.1.attention.",
)


def _table_entry(arrays: Arrays) -> None:
    arrays[LAST + "W_2"][0, -1, 40:42] += [0.5, -0.5]
    arrays[LAST + "W_2"][0, -1, 42:44] -= [0.5, -0.5]


def _every_entry(arrays: Arrays) -> None:
    arrays[LAST + "b_2"][0, -1] += 1


def _threshold(arrays: Arrays) -> None:
    arrays[DIGITS + "b_1"][0, 6:8] += 2.0**22


def _look_up_threshold(arrays: Arrays) -> None:
    arrays[LAST + "b_1"][0, 50:52] += 4.0


def _query(arrays: Arrays) -> None:
    arrays[SUM + "W_Q"][0, 0, 0, 0] = 1.0
    arrays[SUM + "W_K"][0, 0, 0, 0] = 1.0


def _bias_of_the_query(arrays: Arrays) -> None:
    arrays[SUM + "b_Q"][0, 0, 0] = 1.0
    arrays[SUM + "W_K"][0, 0, 0, 1] = 1.0


def _swapped_units(arrays: Arrays) -> None:
    W_2 = arrays[LAST + "W_2"]
    W_2[0, :, [10, 101]] = W_2[0, :, [101, 10]]


def _unbalanced(arrays: Arrays) -> None:
    arrays[LAST + "W_2"][0, -1, -1] *= 1 + 2.0**-20


def _factor_of_the_mean(arrays: Arrays) -> None:
    arrays[SUM + "W_O"] *= 2


def _input_overwritten(arrays: Arrays) -> None:
    arrays[DIGITS + "W_2"][0, 0, 3] = 1e-9


def _read_in(arrays: Arrays) -> None:
    arrays["registers.start"][1, 0] += 0.25


def _read_out(arrays: Arrays) -> None:
    arrays["registers.W_out"][0, 0] = 1e-3


TAMPERED = [
    _table_entry,
    _every_entry,
    _threshold,
    _look_up_threshold,
    _query,
    _bias_of_the_query,
    _swapped_units,
    _unbalanced,
    _factor_of_the_mean,
    _input_overwritten,
    _read_in,
    _read_out,
]


def tampered(network: Network, change: Callable[[Arrays], Any]) -> Network:
    arrays = {name: array.copy() for name, array in network.arrays()}
    change(arrays)
    return network.with_arrays(arrays)


@pytest.mark.rows(7)
@pytest.mark.parametrize("change", TAMPERED)
def test_tampering_is_not_proved(change: Callable[[Arrays], Any]) -> None:
    built = built_with()
    assert built.certificate.eps is not None
    other = tampered(built.network, change)
    found = certify(other, TARGET, grid=8, p=Fraction(2), eps=built.certificate.eps)
    assert found.verdict is not ef.Verdict.PROVED
    # If a bound is found it is one: of the network as it is now.
    if found.bound is not None:
        x = np.random.default_rng(0).random((20_000, 2, 1))
        gap = (np.abs(TARGET(x) - other(x)) ** 2).sum(axis=(1, 2)).mean() ** 0.5
        assert gap * 0.98 <= float(found.bound.value)  # sampled


def test_units_in_another_order_are_the_same_function() -> None:
    built = built_with()

    def swap(arrays: Arrays) -> None:
        order = np.random.default_rng(0).permutation(arrays[LAST + "b_1"].shape[1])
        for name in ("W_1", "b_1"):
            arrays[LAST + name] = arrays[LAST + name][:, order]
        arrays[LAST + "W_2"] = arrays[LAST + "W_2"][:, :, order]

    other = tampered(built.network, swap)
    found = certify(other, TARGET, grid=8, p=Fraction(2), eps=built.certificate.eps)
    assert found.verdict is ef.Verdict.PROVED


def test_where_float64_cannot_be_followed_the_real_claim_stands(tmp_path: Path) -> None:
    """A ramp of 2^-40: hidden units of 2^41 times 64 cancel in one sum."""
    built = ef.construct(TARGET, grid=64, p=3, method="averaging")
    certificate = built.certify()
    assert certificate.claims == ("real",)
    assert "rounding may move a key" in certificate.obstacles[0].why


def test_what_is_read_is_what_the_weights_do(tmp_path: Path) -> None:
    built = ef.construct(TARGET, grid=8, method="averaging")
    built.network.save(tmp_path / "network.safetensors")
    weights = read_weights(tmp_path / "network.safetensors")
    assert weights.blocks == 2
    reading = read_registers(weights, TARGET.domain, 8)
    columns = table_of(built).columns
    x = grid_plan(built.plan).shape.centres(columns)
    exact = built.network.exact(x)
    real, run = reading.values(columns, "real"), reading.values(columns, "float64")
    for (centre, radius), want in zip(
        zip(real.centre.flat, real.radius.flat, strict=True), exact.flat, strict=True
    ):
        assert abs(Fraction(float(centre)) - want) <= Fraction(float(radius))
    assert (np.abs(built.network(x) - run.centre) <= run.radius).all()
    found = built.network(x, executor="reference")
    assert (np.abs(found - run.centre) <= run.radius).all()


@pytest.mark.parametrize("name", ["registers.start", "registers.W_out"])
def test_damaged_files(tmp_path: Path, name: str) -> None:
    built = built_with()
    path = tmp_path / "network.safetensors"
    built.network.save(path)
    data = path.read_bytes()
    path.write_bytes(data.replace(name.encode(), name.encode()[:-1] + b"X", 1))
    with pytest.raises(CertificateError, match="does not hold the weights"):
        read_weights(path)
