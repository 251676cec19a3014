"""What a certificate says, on paper and on disk; what is damaged is refused."""

import hashlib
import io
import json
import shutil
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.certify.tampered import edit
from tests.plans import declared

import everyformer as ef
from everyformer.certify.certificate import (
    CERTIFICATE_FILE,
    VALUES_FILE,
    values_bytes,
)
from everyformer.certify.certificate_file import read_certificate
from everyformer.certify.hypotheses import FLOAT64, Kind
from everyformer.certify.verify import NETWORK_FILE
from everyformer.errors import CertificateError, DomainError
from everyformer.targets import centring, reverse, smooth_rank
from everyformer.targets.target import Target

Steps = tuple[str | int, ...]


@cache
def certified(kind: str) -> tuple[ef.Built, ef.Certificate]:
    """A network, and what is certified of it."""
    targets = {
        "expression": reverse(2, 1),
        "lipschitz": reverse(2, 1),
        "modulus": smooth_rank(2, 1),
        "nothing": Target(np.floor, 2, 1, name="steps"),
        "rational": centring(2, 1),
    }
    built = ef.construct(
        targets[kind], grid=4, method=ef.SelectiveShifts(softened=kind != "rational")
    )
    known = declared(built) if kind in ("lipschitz", "modulus") else built
    return built, known.certify()


KINDS = ("expression", "lipschitz", "modulus", "nothing", "rational")


def save(kind: str, folder: Path) -> Path:
    built, certificate = certified(kind)
    built.network.save(folder / NETWORK_FILE)
    certificate.save(folder)
    return folder


def edited(folder: Path, steps: Steps, value: Any) -> Path:
    """The folder, with one value of certificate.json replaced."""
    edit(folder, *steps, to=value)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read(kind: str, tmp_path: Path) -> None:
    _, certificate = certified(kind)
    found = read_certificate(save(kind, tmp_path))
    assert found.to_json() == certificate.to_json()
    assert found.verdict is certificate.verdict
    said = [f"the file says, unchecked: {line}" for line in str(certificate).splitlines()]
    if not certificate.obstacles:
        assert str(found).splitlines() == said
    assert len(str(found).splitlines()) == len(said)
    assert found.hypotheses == certificate.hypotheses
    assert found.statement.kind == {"lipschitz": "modulus", "rational": "expression"}.get(
        kind, kind
    )
    if certificate.statement.values is None:
        assert found.statement.values is None
        assert not (tmp_path / VALUES_FILE).exists()
    else:
        assert found.statement.values is not None
        assert (found.statement.values == certificate.statement.values).all()


def leaves(values: Any, steps: Steps = ()) -> Iterator[tuple[Steps, Any]]:
    """Every number and text of a JSON value, with the steps to it."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from leaves(value, (*steps, str(key)))
    elif isinstance(values, list):
        for index, value in enumerate(values):
            yield from leaves(value, (*steps, index))
    else:
        yield steps, values


@pytest.mark.parametrize("kind", KINDS)
def test_no_number_on_disk_is_a_float(kind: str) -> None:
    for steps, value in leaves(certified(kind)[1].to_json()):
        assert not isinstance(value, float), steps


def test_what_is_printed() -> None:
    _, certificate = certified("expression")
    lines = str(certificate).splitlines()
    assert lines[0] == (
        "PROVED: d_2(reverse, g) <= 0.1021, g in real arithmetic and as float64 runs it"
    )
    assert lines[1].startswith("<= 1.021e-01")
    assert sum(line.startswith("<=") for line in lines) == 2
    assert lines[-1] == f"assumes: {FLOAT64}"
    assert certificate.eps is not None
    for bound in (certificate.bound, certificate.float64_bound):
        assert bound is not None
        assert bound.value <= Fraction(bound.format_value()) <= certificate.eps


def test_every_number_can_be_printed() -> None:
    """And never below its value: also those that float64 cannot hold."""
    _, certificate = certified("expression")
    for eps in (Fraction(1, 3), Fraction(10**400), Fraction(1, 10**400)):
        printed = str(replace(certificate, eps=eps)).splitlines()[0]
        assert Fraction(printed.split("<= ")[1].split(",")[0]) >= eps


def test_declarations_are_assumptions() -> None:
    _, certificate = certified("lipschitz")
    first = str(certificate).splitlines()[0]
    assert first.startswith(
        "PROVED, CONDITIONAL on the declared max|f(X) - f(Y)| <= 1 max|X - Y|: d_2("
    )
    declared = "declared, not proved: max|f(X) - f(Y)| <= 1 max|X - Y|"
    assert certificate.assumptions[0] == declared
    assert certificate.to_json()["claim"]["kind"].endswith("conditional")
    _, certificate = certified("modulus")
    assert "0.125" in certificate.assumptions[0].partition(" for max|X - Y| <= ")[2]
    assert "declared, not proved: f is permutation equivariant" in certificate.assumptions
    first = str(certificate).splitlines()[0]
    assert first.startswith("PROVED, CONDITIONAL on the declared max|f(X) - f(Y)| <= 0.")
    assert " for max|X - Y| <= 0.125 and equivariance of f: d_2(smooth_rank, g)" in first
    assert certified("rational")[1].assumptions == ()


def test_hypotheses_say_what_they_are_for() -> None:
    kinds = [one.kind for one in certified("modulus")[1].hypotheses]
    assert kinds == [Kind.MODULUS, Kind.VALUES, Kind.EQUIVARIANCE, Kind.FLOAT64]
    (only,) = certified("expression")[1].hypotheses
    assert only is FLOAT64
    assert only.claims == ("float64",)


def test_without_knowledge_there_is_a_measurement() -> None:
    _, certificate = certified("nothing")
    assert certificate.verdict is ef.Verdict.UNKNOWN
    assert certificate.eps is None
    assert certificate.claims == ()
    assert certificate.bound is None
    assert certificate.distance_sampled is not None
    text = str(certificate)
    assert text.startswith("UNKNOWN: nothing is claimed")
    assert "not proved: target: no modulus is declared, and no trace" in text
    assert "measured, not proved: d_2 about" in text


def test_the_verdict_compares_every_claim() -> None:
    _, certificate = certified("expression")
    assert certificate.bound is not None
    assert certificate.float64_bound is not None
    assert certificate.bound <= certificate.float64_bound.value
    between = replace(certificate, eps=certificate.bound.value)
    assert between.verdict is ef.Verdict.UNKNOWN
    assert replace(between, claims=("real",)).verdict is ef.Verdict.PROVED
    assert replace(between, claims=()).verdict is ef.Verdict.UNKNOWN
    assert replace(certificate, float64_bound=None).verdict is ef.Verdict.UNKNOWN
    assert replace(certificate, eps=None).verdict is ef.Verdict.UNKNOWN


DAMAGE: list[tuple[str, Steps, Any]] = [
    ("expression", ("format",), "something else"),
    ("expression", ("version",), 2),
    ("expression", ("claim",), []),
    ("expression", ("claim", "p"), "1/2"),
    ("expression", ("claim", "p"), "1/0"),
    ("expression", ("claim", "p"), "1000001/1000000"),
    ("expression", ("claim", "eps"), "small"),
    ("expression", ("claim", "eps"), "-1"),
    ("expression", ("claim", "eps"), "-1e400"),
    ("expression", ("claim", "eps"), "1e5"),
    ("expression", ("claim", "metric"), "d_infinity"),
    ("expression", ("claim", "claims"), ["complex"]),
    ("expression", ("claim", "claims"), None),
    ("expression", ("claim", "n"), 3),
    ("expression", ("claim", "d"), 2),
    ("expression", ("claim", "n"), True),
    ("expression", ("claim", "domain"), [["1", "0"]]),
    ("expression", ("claim", "domain"), [["0", "1/3"]]),
    ("expression", ("claim", "domain"), [["0", "1"], ["0", "1"]]),
    ("expression", ("weights", "dtype"), "rational"),
    ("expression", ("weights", "sha256"), "0" * 64),
    ("expression", ("weights", "blocks"), "many"),
    ("expression", ("construction", "grid"), 0),
    ("expression", ("construction", "grid"), 1),
    ("expression", ("construction", "grid"), 4.0),
    ("expression", ("construction", "grid"), 10**6),
    ("expression", ("construction", "grid"), 10**200),
    ("expression", ("target", "kind"), "oracle"),
    ("expression", ("target", "kind"), "nothing at all"),
    ("expression", ("target", "expression", "nodes", 0), ["eval", 0]),
    ("expression", ("target", "expression", "outputs"), [[0]]),
    ("expression", ("target", "expression"), None),
    ("expression", ("target", "sha256"), "0" * 64),
    ("expression", ("bound", "value"), "-1"),
    ("expression", ("bound", "value"), None),
    ("expression", ("bound", "terms"), 3),
    ("expression", ("bound", "rule"), "p-norm x"),
    ("expression", ("bound", "rule"), "p-norm 0"),
    ("expression", ("bound", "terms", 0, "rule"), "p-norm -1"),
    ("expression", ("cells",), 5),
    ("expression", ("cells", "count"), True),
    ("expression", ("cells", "radius"), True),
    ("expression", ("distance_sampled",), "about 1"),
    ("expression", ("distance_sampled",), "nan"),
    ("expression", ("distance_sampled",), True),
    ("expression", ("versions",), 1),
    ("expression", ("obstacles",), 1),
    ("expression", ("obstacles",), [{"stage": "clamp"}]),
    ("expression", ("hypotheses",), 1),
    ("expression", ("hypotheses",), [{"kind": "faith", "claims": [], "text": ""}]),
    ("rational", ("weights", "dtype"), "float64"),
    ("modulus", ("target", "omega"), None),
    ("modulus", ("target", "omega"), "-1"),
    ("modulus", ("target", "omega"), str(10**400)),
    ("modulus", ("target", "steps"), {"1": str(10**400)}),
    ("modulus", ("target", "steps"), []),
    ("modulus", ("target", "values", "sha256"), "0" * 64),
    ("modulus", ("target", "equivariant"), False),
    ("modulus", ("construction", "grid"), 8),
    ("lipschitz", ("target", "lipschitz"), "one"),
]


@pytest.mark.parametrize(("kind", "steps", "value"), DAMAGE)
def test_damage_is_no_verdict(kind: str, steps: Steps, value: Any, tmp_path: Path) -> None:
    """Refused, or (a bound tree that makes no sense) not proved."""
    folder = edited(save(kind, tmp_path), steps, value)
    if steps[-1] == "rule":
        assert ef.verify(folder).verdict is ef.Verdict.UNKNOWN
        return
    with pytest.raises(CertificateError):
        ef.verify(folder)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "3", '"certificate"', "{}", "[" * 10**5, "\ufeff{}"]
)
def test_text_that_is_no_certificate(text: str, tmp_path: Path) -> None:
    (save("expression", tmp_path) / CERTIFICATE_FILE).write_text(text, encoding="utf-8")
    with pytest.raises(CertificateError, match="not a certificate that can be read"):
        ef.verify(tmp_path)
    (tmp_path / CERTIFICATE_FILE).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CertificateError, match="not a certificate that can be read"):
        ef.verify(tmp_path)


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array)
    return buffer.getvalue()


TEN = np.zeros((10, 2, 1))
HEADER = b"\x93NUMPY\x01\x00\x10\x00"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(npy(TEN)[:-1], id="cut"),
        pytest.param(npy(TEN[:9]), id="too few"),
        pytest.param(npy(TEN[..., 0]), id="too flat"),
        pytest.param(npy(TEN.astype(np.float32)), id="float32"),
        pytest.param(npy(TEN.astype(">f8")), id="big-endian"),
        pytest.param(npy(TEN * np.nan), id="nan"),
        pytest.param(HEADER + b"(" * 15 + b"\n", id="open bracket"),
        pytest.param(HEADER + b"'" * 15 + b"\n", id="open text"),
        pytest.param(npy(TEN).replace(b"(10, 2, 1), }   ", b"(9999999999,9,)}"), id="huge"),
    ],
)
def test_values_that_are_damaged(data: bytes, tmp_path: Path) -> None:
    (save("modulus", tmp_path) / VALUES_FILE).write_bytes(data)
    with pytest.raises(CertificateError, match="not the file that the certificate names"):
        ef.verify(tmp_path)
    edited(tmp_path, ("target", "values", "sha256"), hashlib.sha256(data).hexdigest())
    with pytest.raises(CertificateError):
        ef.verify(tmp_path)


def test_values_of_any_size_are_judged(tmp_path: Path) -> None:
    """No overflow on the way to the verdict."""
    for size in (1e150, 1e154, 1e300):
        data = values_bytes(TEN + size)
        (save("modulus", tmp_path) / VALUES_FILE).write_bytes(data)
        edited(tmp_path, ("target", "values", "sha256"), hashlib.sha256(data).hexdigest())
        assert ef.verify(tmp_path).verdict is ef.Verdict.REFUTED


def rewrite_weights(folder: Path, steps: Steps, value: Any) -> None:
    """Change the header of network.safetensors; the certificate learns the new hash."""
    place = folder / NETWORK_FILE
    data = place.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    description = json.loads(header["__metadata__"]["everyformer-network"])
    inner: Any = {"header": header, "description": description}
    for step in steps[:-1]:
        inner = inner[step]
    inner[steps[-1]] = value
    header["__metadata__"]["everyformer-network"] = json.dumps(description)
    text = json.dumps(header).encode()
    place.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    digest = hashlib.sha256(place.read_bytes()).hexdigest()
    edited(folder, ("weights", "sha256"), digest)


QUANTISER = "stages.0.feed_forward.W_1"


@pytest.mark.parametrize(
    ("kind", "steps", "value"),
    [
        ("expression", ("header", "positions", "shape"), [-2, -1]),
        ("expression", ("header", "positions", "shape"), [1, 2]),
        ("expression", ("header", "positions", "data_offsets"), None),
        ("expression", ("header", "positions", "dtype"), "F16"),
        ("expression", ("header", QUANTISER, "dtype"), "I64"),
        ("expression", ("header", "another"), {}),
        ("expression", ("description", "version"), 9),
        ("expression", ("description", "architecture", "seq_len"), 3),
        ("expression", ("description", "architecture", "seq_len"), 1e999),
        ("expression", ("description", "architecture", "normaliser"), "hardmax"),
        ("expression", ("description", "architecture", "normaliser"), "sparsemax"),
        ("expression", ("description", "stages"), []),
        ("rational", ("description", "denominators", QUANTISER), "0"),
        ("rational", ("description", "denominators", QUANTISER), 1e999),
        ("rational", ("description", "denominators"), {}),
        ("rational", ("description", "architecture", "normaliser"), "softmax"),
    ],
)
def test_weights_that_are_damaged(
    kind: str, steps: Steps, value: Any, tmp_path: Path
) -> None:
    rewrite_weights(save(kind, tmp_path), steps, value)
    with pytest.raises(CertificateError):
        ef.verify(tmp_path)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 7, b"\0" * 64, b"\xff" * 64, struct.pack("<Q", 10**5) + b"[" * 10**5],
)
def test_files_that_are_no_weights(data: bytes, tmp_path: Path) -> None:
    (save("expression", tmp_path) / NETWORK_FILE).write_bytes(data)
    with pytest.raises(CertificateError):
        ef.verify(tmp_path)


@pytest.mark.parametrize("name", [NETWORK_FILE, CERTIFICATE_FILE, VALUES_FILE])
def test_missing_files(name: str, tmp_path: Path) -> None:
    (save("modulus", tmp_path) / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        ef.verify(tmp_path)
    (tmp_path / name).mkdir()
    with pytest.raises(FileNotFoundError, match=name):
        ef.verify(tmp_path)


# Edits at random.

RATIONALS = st.fractions(-2, 2, max_denominator=64).map(str)
ANYTHING = st.one_of(
    RATIONALS,
    st.integers(-3, 9),
    st.integers(10**3, 10**500),
    st.integers(-(10**500), 10**500).map(str),
    st.none(),
    st.booleans(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["real", "float64", "sum", "p-norm 2", "p-norm 5/2", "", "modulus"]),
    st.lists(st.sampled_from(["real", "float64", "0", "1", "2"]), max_size=3),
    st.just({}),
)
CHARACTERS = '0123456789/-.,:[]{}" nrtx'  # no "e": 1e999999999 would be a long number


@st.composite
def certificate_texts(draw: st.DrawFn, values: Any) -> str:
    """certificate.json with a few values, or a few characters, replaced."""
    if draw(st.booleans()):
        text = json.dumps(values)
        for _ in range(draw(st.integers(1, 3))):
            at = draw(st.integers(0, len(text) - 1))
            new = draw(st.text(CHARACTERS, max_size=2))
            text = text[:at] + new + text[at + draw(st.integers(0, 2)) :]
        return text
    values = json.loads(json.dumps(values))
    for _ in range(draw(st.integers(1, 3))):
        places = list(leaves(values))
        steps, _ = draw(st.sampled_from(places))
        steps = steps[: draw(st.integers(1, len(steps)))] if draw(st.booleans()) else steps
        if not steps:
            continue
        inner = values
        for step in steps[:-1]:
            inner = inner[step]
        if draw(st.integers(0, 4)) == 0:
            del inner[steps[-1]]
        else:
            other = draw(st.sampled_from(places))[1]
            inner[steps[-1]] = draw(st.one_of(ANYTHING, st.just(other)))
    return json.dumps(values)


@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_any_text_is_refused_or_judged(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    built, certificate = certified(kind)
    text = data.draw(certificate_texts(certificate.to_json()))
    with tempfile.TemporaryDirectory() as name:
        folder = save(kind, Path(name))
        (folder / CERTIFICATE_FILE).write_text(text)
        try:
            found = ef.verify(folder)
        except (CertificateError, FileNotFoundError) as error:
            event(type(error).__name__)
            return
    event(found.verdict.name)
    if found.verdict is ef.Verdict.PROVED:
        assert_true(found, built.network)


def assert_true(found: ef.Verification, network: ef.Network) -> None:
    """What is said to be proved follows from the bounds found, and agrees with samples."""
    claim = found.certificate
    assert claim.eps is not None
    assert claim.claims
    bounds = {"real": found.bound, "float64": found.float64_bound}
    for name in claim.claims:
        bound = bounds[name]
        assert bound is not None
        assert bound <= claim.eps
    if claim.statement.expression is None:
        return
    low, high = np.asarray(claim.box.lows), np.asarray(claim.box.highs)
    assert claim.p is not None
    cube = np.random.default_rng(0).random((256, claim.seq_len, claim.d_model))
    x = low + (high - low) * cube
    try:
        gap = np.abs(claim.statement.expression(x) - network(x)) ** float(claim.p)
    except DomainError:  # proved, where the network refuses to run
        return
    volume = float(claim.box.volume(claim.seq_len))
    sampled = (gap.sum(axis=(1, 2)).mean() * volume) ** (1 / float(claim.p))
    assert sampled <= 1.2 * float(min(claim.eps, Fraction(10**300)))


def test_a_folder_may_be_moved(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    for kind in ("expression", "modulus", "rational"):
        save(kind, tmp_path / "first")
        moved = shutil.copytree(tmp_path / "first", tmp_path / kind / "elsewhere")
        assert ef.verify(moved).verdict is ef.Verdict.PROVED
        assert ef.verify(str(moved)).verdict is ef.Verdict.PROVED
