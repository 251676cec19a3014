"""Weights on disk: read back bit for bit, and refused when anything is wrong."""

import copy
import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everyformer as ef
from everyformer.certify.weights import Weights, read_weights, to_fractions
from everyformer.errors import CertificateError
from everyformer.files.network_file import FORMAT
from everyformer.files.tensors import read_tensors
from everyformer.model.activation import PiecewiseLinear
from everyformer.model.architecture import ArchitectureSpec, Normaliser
from everyformer.model.network import Network, load
from everyformer.model.stacks import FeedForwardStack, Stage
from everyformer.numerics.rationals import exact_array

DTYPES = {"float64": "F64", "int64": "I64", "bool": "BOOL", "float32": "F32"}

NETWORKS: dict[str, Callable[[], Network]] = {
    "Theorem 2": lambda: ef.construct(ef.targets.centring(2), grid=4).network,
    "Theorem 3": lambda: ef.construct(ef.targets.reverse(2, 2), grid=2).network,
    "one token": lambda: ef.construct(ef.targets.centring(1, 2), grid=2).network,
    "rational 2": lambda: (
        ef.construct(
            ef.targets.centring(2), grid=3, method=ef.SelectiveShifts(softened=False)
        ).network
    ),
    "rational 3": lambda: (
        ef.construct(
            ef.Target(lambda x: x[..., ::-1, :], 2, 1, lipschitz=1, domain=[(-2, 5)]),
            grid=3,
            method=ef.SelectiveShifts(softened=False),
        ).network
    ),
}


def saved(network: Network, path: Path) -> Weights:
    network.save(path)
    return read_weights(path)


def file_of(description: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    """A safetensors file, written here."""
    header: dict[str, Any] = {"__metadata__": {FORMAT: json.dumps(description)}}
    body = b""
    for name, array in tensors.items():
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    return with_header(header, body)


def with_header(header: Any, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def refusal(data: bytes, folder: Path) -> str:
    path = folder / "network.safetensors"
    path.write_bytes(data)
    with pytest.raises(CertificateError) as caught:
        read_weights(path)
    return str(caught.value)


@pytest.mark.parametrize("name", NETWORKS)
def test_reads_what_was_written(name: str, tmp_path: Path) -> None:
    network = NETWORKS[name]()
    found = saved(network, tmp_path / "n")
    spec = network.architecture
    assert (found.seq_len, found.d_model) == (spec.seq_len, spec.d_model)
    assert found.softmax == (spec.normaliser == "softmax")
    assert found.exact == network.is_exact == name.startswith("rational")
    assert found.blocks == network.blocks
    assert [stage.name for stage in found.stages] == [s.name for s in network.stages]
    assert (found.positions is None) == (network.positions is None)
    if network.positions is not None and found.positions is not None:
        assert (found.positions == to_fractions(network.positions)).all()
    for own, stage in zip(found.stages, network.stages, strict=True):
        arrays = dict(stage.arrays())
        assert own.layers == stage.blocks
        assert {f"{own.half}.{key}" for key in own.arrays} == set(arrays)
        for key, array in own.arrays.items():
            written = arrays[f"{own.half}.{key}"]
            assert array.shape == written.shape
            if written.dtype == object:
                assert all(type(v) is Fraction for v in array.flat)
                assert (array == written).all()
            else:
                assert array.dtype == written.dtype
                assert array.tobytes() == np.ascontiguousarray(written).tobytes()
        last = own.layer(own.layers - 1)
        assert all((last[key] == array[-1]).all() for key, array in own.arrays.items())


@settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.fractions(max_denominator=10**30), min_size=6, max_size=6),
    st.lists(st.integers(-(10**60), 10**60), min_size=2, max_size=2),
)
def test_rationals_of_any_size(
    tmp_path: Path, fractions: list[Fraction], integers: list[int]
) -> None:
    def array(values: list[Any], *shape: int) -> np.ndarray:
        result = np.empty(len(values), dtype=object)
        result[:] = values
        return result.reshape(shape)

    low, high = sorted((fractions[3], fractions[3] + abs(integers[0]) + 1))
    stack = FeedForwardStack(
        W_1=array(fractions[:2], 1, 1, 2),
        b_1=array(fractions[2:3], 1, 1),
        W_2=array(integers, 1, 2, 1),
        b_2=array(fractions[4:], 1, 2),
        phi=PiecewiseLinear(
            breaks=array([low, high], 1, 1, 2),
            closed=np.array([[[True, False]]]),
            slopes=array([0, *fractions[:2]], 1, 1, 3),
            intercepts=array([*integers, fractions[5]], 1, 1, 3),
        ),
    )
    spec = ArchitectureSpec(1, 2, 1, 1, 1, "hardmax", "piecewise-linear", False)
    stage = Stage("only", "here", feed_forward=stack)
    found = saved(Network(spec, (stage,)), tmp_path / "n").stages[0].arrays
    for name, array_written in stage.arrays():
        assert (found[name.removeprefix("feed_forward.")] == array_written).all()


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_floats_are_the_fractions_they_are(values: list[float]) -> None:
    found = to_fractions(np.array(values))
    assert found.tolist() == [Fraction(v) for v in values]


def test_the_same_network_has_the_same_hash(tmp_path: Path) -> None:
    network = NETWORKS["Theorem 3"]()
    first = saved(network, tmp_path / "a").sha256
    again = saved(load(tmp_path / "a"), tmp_path / "b").sha256
    assert first == again == hashlib.sha256((tmp_path / "a").read_bytes()).hexdigest()
    arrays = {name: array.copy() for name, array in network.arrays()}
    last = list(arrays)[-1]
    arrays[last].flat[0] = np.nextafter(arrays[last].flat[0], np.inf)
    assert saved(network.with_arrays(arrays), tmp_path / "c").sha256 != first


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(FileNotFoundError, match="everyformer construct"):
            read_weights(path)


Contents = tuple[dict[str, Any], dict[str, np.ndarray]]
W_1, W_Q = "stages.0.feed_forward.W_1", "stages.1.attention.W_Q"
B_2 = "stages.0.feed_forward.b_2"


def set_value(name: str, value: float) -> Callable[[Contents], None]:
    def damage(contents: Contents) -> None:
        array = contents[1][name].copy()
        array.flat[-1] = value
        contents[1][name] = array

    return damage


def put(name: str, array: Any) -> Callable[[Contents], None]:
    return lambda contents: contents[1].update({name: np.asarray(array)})


def put_from(name: str, make: Callable[[np.ndarray], Any]) -> Callable[[Contents], None]:
    return lambda contents: contents[1].update({name: make(contents[1][name])})


def describe(**changes: Any) -> Callable[[Contents], None]:
    return lambda contents: contents[0].update(changes)


def respecify(**changes: Any) -> Callable[[Contents], None]:
    return lambda contents: contents[0]["architecture"].update(changes)


def rational(name: str, denominator: str) -> Callable[[Contents], None]:
    """One array of a float64 network as integers over a denominator."""

    def damage(contents: Contents) -> None:
        contents[1][name] = contents[1][name].astype(np.int64)[..., None]
        contents[0]["denominators"][name] = denominator

    return damage


CONTENTS: dict[str, tuple[Callable[[Contents], object], str]] = {
    "NaN": (set_value(W_1, np.nan), "not finite"),
    "infinity": (set_value(W_Q, -np.inf), "not finite"),
    "NaN position": (set_value("positions", np.nan), "not finite"),
    "mixed kinds": (rational(W_1, "1"), "mixed"),
    "integers": (put_from(W_1, lambda a: a.astype(np.int64)), "without a denominator"),
    "float32": (put_from(W_1, lambda a: a.astype(np.float32)), "F32"),
    "version": (describe(version=2), "format version 2"),
    "no version": (lambda contents: contents[0].pop("version"), "version"),
    "no denominators": (lambda contents: contents[0].pop("denominators"), "denominators"),
    "denominator 0": (rational(W_1, "0"), "network"),
    "denominator text": (rational(W_1, "one"), "network"),
    "denominator of nothing": (describe(denominators={"stages.9.W": "1"}), "stages.9.W"),
    "normaliser": (respecify(normaliser="sparsemax"), "normaliser"),
    "d_model": (respecify(d_model=3), "positions have shape"),
    "seq_len": (respecify(seq_len=3), "positions have shape"),
    "missing array": (lambda contents: contents[1].pop(B_2), "shapes"),
    "missing first array": (lambda contents: contents[1].pop(W_1), "W_1"),
    "missing stage": (lambda contents: contents[0]["stages"].pop(), "no stage"),
    "extra array": (put("stages.0.feed_forward.b_3", np.ones(2)), "no stage"),
    "array of no stage": (put("stages.99.feed_forward.b_2", np.ones(2)), "no stage"),
    "stray array": (put("elsewhere", np.ones(2)), "no stage"),
    "both halves": (put("stages.0.attention.W_Q", np.ones((1, 1, 1, 1))), "shapes"),
    "third half": (put("stages.0.norm.gain", np.ones(1)), "no stage"),
    "wrong shape": (put_from(B_2, lambda a: a[..., None]), "shapes"),
    "transposed": (put_from(W_1, lambda a: np.moveaxis(a, 1, 2)), "shapes"),
    "too few layers": (put_from(B_2, lambda a: a[:-1]), "shapes"),
    "positions": (put_from("positions", lambda a: a.T[:, :1]), "positions have shape"),
    "breaks without slopes": (
        put("stages.0.feed_forward.phi.breaks", np.zeros((1, 4, 2))),
        "network",
    ),
}


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    path = tmp_path_factory.mktemp("weights") / "n"
    NETWORKS["Theorem 3"]().save(path)
    found = read_tensors(path)
    return json.loads(found.metadata[FORMAT]), found.arrays


def test_an_undamaged_copy_is_read(contents: Contents, tmp_path: Path) -> None:
    """The control of the tests below: this writer's files are read, too."""
    path = tmp_path / "n"
    path.write_bytes(file_of(*contents))
    assert read_weights(path).blocks == NETWORKS["Theorem 3"]().blocks


@pytest.mark.parametrize("name", CONTENTS)
def test_wrong_contents_are_refused(name: str, contents: Contents, tmp_path: Path) -> None:
    damage, words = CONTENTS[name]
    damaged = copy.deepcopy(contents)
    damage(damaged)
    assert words in refusal(file_of(*damaged), tmp_path)


@pytest.mark.parametrize("normaliser", ["softmax", "hardmax"])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("exact", [True, False])
def test_other_kinds_of_network_are_refused(
    normaliser: Normaliser, relu: bool, exact: bool, tmp_path: Path
) -> None:
    """Two of eight kinds are followed: the paper's two classes."""
    network = ef.construct(
        ef.targets.reverse(2), grid=2, method=ef.SelectiveShifts(softened=relu)
    ).network
    if exact:
        arrays = {k: exact_array(a) if a.dtype != bool else a for k, a in network.arrays()}
        network = network.with_arrays(arrays)
    else:
        network = network.in_float64(allow_rounding=True)
    spec = replace(network.architecture, normaliser=normaliser)
    Network(spec, network.stages, network.positions).save(tmp_path / "n")
    if (normaliser, relu, exact) in (("softmax", True, False), ("hardmax", False, True)):
        assert read_weights(tmp_path / "n").exact == exact
        return
    with pytest.raises(CertificateError, match="only softmax with ReLU in float64"):
        read_weights(tmp_path / "n")


def test_a_stage_of_no_layers_is_refused(contents: Contents, tmp_path: Path) -> None:
    description, tensors = copy.deepcopy(contents)
    prefix = "stages.0."
    empty = {k: v[:0] if k.startswith(prefix) else v for k, v in tensors.items()}
    assert "shapes" in refusal(file_of(description, empty), tmp_path)


def test_breaks_in_the_wrong_order_are_refused(tmp_path: Path) -> None:
    """`load` refuses them; nothing may be proved of a file that cannot be run."""
    network = NETWORKS["rational 2"]()
    path = tmp_path / "n"
    network.save(path)
    found = read_tensors(path)
    tensors = found.arrays
    name = next(key for key in tensors if key.endswith("phi.breaks"))
    tensors[name] = tensors[name][:, :, ::-1]
    data = file_of(json.loads(found.metadata[FORMAT]), tensors)
    refusal(data, tmp_path)


Layout = tuple[dict[str, Any], bytes]


def move(name: str, start: int, stop: int) -> Callable[[Layout], bytes]:
    """An entry whose offsets are moved."""

    def damage(layout: Layout) -> bytes:
        header, body = layout
        offsets = header[name]["data_offsets"]
        header[name]["data_offsets"] = [offsets[0] + start, offsets[1] + stop]
        return with_header(header, body)

    return damage


def before(layout: Layout) -> bytes:
    header, body = layout
    start, stop = header[W_Q]["data_offsets"]
    header[W_Q]["data_offsets"] = [-8, stop - start - 8]
    return with_header(header, body)


def overlapping(layout: Layout) -> bytes:
    """W_Q read from the place of W_K: finite numbers of the right shape."""
    header, body = layout
    header[W_Q]["data_offsets"] = header[W_Q.replace("_Q", "_K")]["data_offsets"]
    return with_header(header, body)


def shared_end(layout: Layout) -> bytes:
    """W_K is the last tensor, W_Q the same bytes; no byte of the file is left over."""
    header, body = layout
    W_K, kept = W_Q.replace("_Q", "_K"), b""
    names = [name for name in header if name not in ("__metadata__", W_K, W_Q)]
    for name in [*names, W_K]:
        start, stop = header[name]["data_offsets"]
        header[name]["data_offsets"] = [len(kept), len(kept) + stop - start]
        kept += body[start:stop]
    header[W_Q]["data_offsets"] = header[W_K]["data_offsets"]
    return with_header(header, kept)


def claiming(length: int) -> Callable[[Layout], bytes]:
    def damage(layout: Layout) -> bytes:
        data = with_header(*layout)
        (known,) = struct.unpack("<Q", data[:8])
        return struct.pack("<Q", (known + length) % 2**64) + data[8:]

    return damage


LAYOUTS: dict[str, Callable[[Layout], bytes]] = {
    "header too long": claiming(1),
    "header too short": claiming(-1),
    "header of 2^64 - 1": claiming(-(2**20)),
    "beyond the end": move(W_Q, 10**9, 10**9),
    "before the start": before,
    "too short": move(W_Q, 0, -8),
    "backwards": move(W_Q, 0, -(10**6)),
    "overlapping": overlapping,
    "a shared end": shared_end,
    "a hole": lambda layout: with_header(layout[0], layout[1] + bytes(8)),
    "no metadata": lambda layout: with_header({**layout[0], "__metadata__": {}}, layout[1]),
    "a list": lambda layout: with_header(list(layout[0]), layout[1]),
    "no JSON": lambda layout: struct.pack("<Q", 8) + b"{'a': 1}" + layout[1],
    "no text": lambda layout: struct.pack("<Q", 8) + b"\xff" * 8 + layout[1],
    "deep JSON": lambda layout: struct.pack("<Q", 10**5) + b"[" * 10**5 + layout[1],
    "empty": lambda layout: b"",
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_wrong_layouts_are_refused(name: str, contents: Contents, tmp_path: Path) -> None:
    data = file_of(*contents)
    (length,) = struct.unpack("<Q", data[:8])
    layout = json.loads(data[8 : 8 + length]), data[8 + length :]
    assert "does not hold the weights" in refusal(LAYOUTS[name](layout), tmp_path)


@settings(
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_every_beginning_of_a_file_is_refused(
    contents: Contents, tmp_path: Path, data: st.DataObject
) -> None:
    whole = file_of(*contents)
    refusal(whole[: data.draw(st.integers(0, len(whole) - 1))], tmp_path)


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_no_other_error_escapes(
    contents: Contents, tmp_path: Path, data: st.DataObject
) -> None:
    """A changed byte gives another hash or a `CertificateError`, and nothing else."""
    whole = bytearray(file_of(*contents))
    (length,) = struct.unpack("<Q", whole[:8])
    place = data.draw(st.integers(0, 8 + length))
    whole[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "n"
    path.write_bytes(whole)
    try:
        found = read_weights(path)
    except CertificateError:
        return
    assert found.sha256 != hashlib.sha256(file_of(*contents)).hexdigest()
