"""Attacks on claims over regions and over all of R^(n x d)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adversarial.register_drafts import Draft, exactly
from tests.adversarial.tampering import tamper
from tests.certify.tampered import edit, write_weights

import everyformer as ef
from everyformer.certify.verify import NETWORK_FILE
from everyformer.errors import CertificateError, EveryformerError
from everyformer.verdict import Verdict

CORNER = [[[(0, 0.4)], [(0, 1)]], [[(0.4, 0.9)], [(0.1, 0.3)]]]
EVERYWHERE = "d_p, f = 0 outside the domain"


def hill(x: np.ndarray) -> np.ndarray:
    b = np.maximum(0, 1 - np.abs(2 * x - 1))
    return b.prod(axis=-2, keepdims=True) * np.sin(x + np.arange(x.shape[-2])[:, None])


@pytest.fixture(scope="module")
def built() -> ef.Built:
    target = ef.Target(hill, 2, 1, everywhere=True)
    return ef.construct(target, grid=4, method="averaging")


@pytest.fixture(scope="module")
def regional() -> ef.Built:
    target = ef.Target(hill, 2, 1, region=CORNER, domain=[(0, 1)])
    return ef.construct(target, grid=4, method="averaging")


def changed(network: ef.Network, stage: int, name: str, change: Any) -> ef.Network:
    """The network with one array of a feed-forward stage changed in place."""
    stages = list(network.stages)
    layers = stages[stage].feed_forward
    assert layers is not None
    array = getattr(layers, name).copy()
    change(array)
    stages[stage] = replace(stages[stage], feed_forward=replace(layers, **{name: array}))
    return replace(network, stages=tuple(stages))


def test_a_network_without_alarms_is_not_proved_on_all_of_space(
    built: ef.Built, tmp_path: Path
) -> None:
    built.save(tmp_path)
    plain = ef.construct(ef.Target(hill, 2, 1), grid=4, method="averaging").network
    write_weights(tmp_path, plain)
    edit(tmp_path, "claim", "eps", to="1000")
    found = ef.verify(tmp_path)
    assert found.verdict is Verdict.UNKNOWN
    assert "no integral over" in str(found)


@pytest.mark.parametrize("unit", range(-4, 0))
def test_each_unit_of_the_alarm_is_needed(
    unit: int, built: ef.Built, tmp_path: Path
) -> None:
    def silence(W_2: np.ndarray) -> None:
        W_2[..., unit] = 0.0

    built.save(tmp_path)
    write_weights(tmp_path, changed(built.network, 0, "W_2", silence))
    edit(tmp_path, "claim", "eps", to="1000")
    assert ef.verify(tmp_path).verdict is not Verdict.PROVED


def test_an_alarm_that_is_lower_than_the_keys_is_not_proved(
    built: ef.Built, tmp_path: Path
) -> None:
    def lower(W_2: np.ndarray) -> None:
        W_2[..., -4:] /= 32

    built.save(tmp_path)
    write_weights(tmp_path, changed(built.network, 0, "W_2", lower))
    edit(tmp_path, "claim", "eps", to="1000")
    assert ef.verify(tmp_path).verdict is not Verdict.PROVED


def test_a_value_off_by_an_ulp_has_no_integral(built: ef.Built, tmp_path: Path) -> None:
    """1e-17 instead of 0 beyond the last key: a distance without bound."""

    def nudge(b_2: np.ndarray) -> None:
        place = np.flatnonzero(built.network.registers.W_out[0])[0]  # pyright: ignore[reportOptionalMemberAccess]
        b_2[0, place] = np.nextafter(b_2[0, place], np.inf)

    built.save(tmp_path)
    write_weights(tmp_path, changed(built.network, 1, "b_2", nudge))
    edit(tmp_path, "claim", "eps", to="1000")
    found = ef.verify(tmp_path)
    assert found.verdict is Verdict.UNKNOWN
    assert "no integral over" in str(found)


@pytest.mark.parametrize("method", ["selective-shift", "compile"])
def test_other_networks_are_not_proved_on_all_of_space(method: str, tmp_path: Path) -> None:
    target = ef.targets.centring(2, 1)
    if method == "compile":
        built = ef.construct(target, method=method, p=2, tol=0.1)
    else:
        built = ef.construct(target, method=method, p=2, grid=4)
    built.save(tmp_path)
    for key, value in (("metric", EVERYWHERE), ("eps", "1000")):
        edit(tmp_path, "claim", key, to=value)
    assert ef.verify(tmp_path).verdict is Verdict.UNKNOWN


def test_a_function_that_is_not_zero_outside_is_never_proved_without_condition(
    built: ef.Built, tmp_path: Path
) -> None:
    built.save(tmp_path)
    one = ef.Target(lambda x: 0 * x + 1, 2, 1).expression
    assert one is not None
    edit(tmp_path, "target", "expression", to=one.to_json())
    edit(tmp_path, "target", "sha256", to=one.sha256)
    edit(tmp_path, "claim", "eps", to="1000")
    assert ef.verify(tmp_path).headline.startswith(
        "PROVED, CONDITIONAL on the declared support of f"
    )
    target = ef.Target(lambda x: 0 * x + 1, 2, 1, everywhere=True)
    with pytest.raises(EveryformerError, match="support is not inside the box"):
        ef.verify(tmp_path, target)


def ends(*rows: tuple[Any, Any]) -> list[Any]:
    return [[[[str(a), str(b)]] for a, b in rows]]


@pytest.mark.parametrize(
    "region",
    [
        [],
        ends((0, 1)),
        ends((0, 2), (0, 1)),
        ends((0, 0), (0, 1)),
        ends((1, 0), (0, 1)),
        ends(("nan", 1), (0, 1)),
        ends((0, "1e400"), (0, 1)),
        ends(("1/3", 1), (0, 1)),
        ends((0, 1), (0, 1)) * 2,
        "all",
        None,
        {"0": 1},
        [[[["0", "1", "2"]], [["0", "1"]]]],
    ],
)
def test_hostile_regions_are_refused(
    region: Any, regional: ef.Built, tmp_path: Path
) -> None:
    regional.save(tmp_path)
    edit(tmp_path, "claim", "region", to=region)
    with pytest.raises(CertificateError):
        ef.verify(tmp_path)


def test_a_region_that_was_made_larger_is_not_proved(
    regional: ef.Built, tmp_path: Path
) -> None:
    """Where the network was free, f is not what it computes."""
    regional.save(tmp_path)
    assert ef.verify(tmp_path).verdict is Verdict.PROVED
    edit(tmp_path, "claim", "region", to=ends((0, 1), (0, 1)))
    assert ef.verify(tmp_path).verdict is not Verdict.PROVED
    values = json.loads((tmp_path / "certificate.json").read_text())
    del values["claim"]["region"]
    (tmp_path / "certificate.json").write_text(json.dumps(values))
    assert ef.verify(tmp_path).verdict is not Verdict.PROVED


def test_a_target_with_another_domain_is_not_the_one_of_the_file(
    built: ef.Built, regional: ef.Built, tmp_path: Path
) -> None:
    built.save(tmp_path)
    with pytest.raises(CertificateError, match="over the box"):
        ef.verify(tmp_path, ef.Target(hill, 2, 1))
    regional.save(tmp_path)
    with pytest.raises(CertificateError, match="over all of"):
        ef.verify(tmp_path, built.target)


def test_a_region_and_all_of_space_together_are_refused(
    regional: ef.Built, tmp_path: Path
) -> None:
    regional.save(tmp_path)
    edit(tmp_path, "claim", "metric", to=EVERYWHERE)
    with pytest.raises(CertificateError):
        ef.verify(tmp_path)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("kind", ["everywhere", "region"])
def test_tampered_networks(
    kind: str, built: ef.Built, regional: ef.Built, tmp_path: Path
) -> None:
    """Ten random changes each: what is still bounded is so, by runs in rationals."""
    subject = built if kind == "everywhere" else regional
    source, place = tmp_path / "source", tmp_path / "place"
    subject.save(source)
    place.mkdir()
    said: set[str] = set()
    for number in range(10):
        rng = np.random.default_rng([7, number])
        tamper(source, place, rng)
        try:
            found = ef.verify(place)
            network = ef.load(place / NETWORK_FILE)
        except EveryformerError:
            continue
        said.add(found.verdict.name)
        claim = found.certificate
        f = claim.statement.expression
        if found.bound is None or claim.p is None or f is None:
            continue
        if claim.region is None and claim.everywhere:
            _check_outside(claim.box, network, rng)
        low, high = np.asarray(claim.box.lows), np.asarray(claim.box.highs)
        x, volume = low + (high - low) * rng.random((256, 2, 1)), claim.box.volume(2)
        if claim.region is not None:
            x, volume = claim.region.sample(rng, 256), claim.region.volume
        run = exactly(Draft.of(network), x)
        with np.errstate(all="ignore"):
            assert run is not None
            powers = (np.abs(f(x) - run) ** float(claim.p)).sum(axis=(1, 2))
        spread = 6 * powers.std() / 16
        measured = max(0.0, float((powers.mean() - spread) * float(volume)))
        assert measured ** (1 / float(claim.p)) <= float(found.bound.value) * (1 + 1e-9)
    assert {"PROVED", "UNKNOWN"} <= said


def _check_outside(box: Any, network: ef.Network, rng: np.random.Generator) -> None:
    """Exactly 0 wherever a token is two widths away or more."""
    low, high = np.asarray(box.lows), np.asarray(box.highs)
    x = low + (high - low) * rng.uniform(-3, 4, (128, 2, 1))
    away = np.where(
        rng.random((128, 1)) < 0.5, low - 2 * (high - low), high + 2 * (high - low)
    )
    x[np.arange(128), rng.integers(0, 2, 128)] = away
    run = exactly(Draft.of(network), x)
    assert run is not None
    assert (run == 0).all()
