"""Files of a network that lie about their numbers: `verify` and `load` agree on them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adversarial.hostile_files import BUILDERS, Parts, parts_of
from tests.certify.tampered import edit

import everyformer as ef
from everyformer.certify.verify import NETWORK_FILE
from everyformer.errors import CertificateError, EveryformerError, FileFormatError


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("built")


def answers(folder: Path) -> tuple[str, str]:
    """What `verify` and `load` say of the file of weights: "network" or "refused"."""
    verified = loaded = "network"
    try:
        ef.verify(folder)
    except CertificateError as error:
        verified = "refused" if "does not hold the weights" in str(error) else "network"
    try:
        ef.load(folder / NETWORK_FILE)
    except FileFormatError:
        loaded = "refused"
    return verified, loaded


@pytest.mark.parametrize("name", BUILDERS)
def test_whatever_the_library_builds_is_a_network(name: str, place: Path) -> None:
    """The control of the tests below: these writers' files are read by both."""
    folder = parts_of(name, place).write(place / f"copy {name}")
    assert answers(folder) == ("network", "network")
    assert ef.verify(folder).verdict is ef.Verdict.PROVED


@pytest.mark.parametrize("name", BUILDERS)
def test_weights_stored_as_booleans(name: str, place: Path, tmp_path: Path) -> None:
    """frexp of a boolean goes through float16: the prover once read True as -2048."""
    tensors = parts_of(name, place).tensors
    for array in (k for k, a in tensors.items() if a.dtype != np.bool_):
        parts = parts_of(name, place)
        digits = parts.description["denominators"].pop(array, None) is not None
        numbers = parts.tensors[array]
        parts.tensors[array] = (numbers[..., 0] if digits else numbers) != 0
        assert answers(parts.write(tmp_path)) == ("refused", "refused"), array


def test_masks_and_closed_ends_stored_as_numbers(place: Path, tmp_path: Path) -> None:
    for name, end in (("sparse", ".mask"), ("exact Theorem 2", ".closed")):
        key = next(k for k in parts_of(name, place).tensors if k.endswith(end))
        for dtype in (np.float64, np.int64):
            parts = parts_of(name, place)
            parts.tensors[key] = parts.tensors[key].astype(dtype)
            if dtype == np.int64:
                parts.tensors[key] = parts.tensors[key][..., None]
                parts.description["denominators"][key] = "1"
            assert answers(parts.write(tmp_path)) == ("refused", "refused"), (name, dtype)


def test_booleans_that_are_neither_true_nor_false(place: Path, tmp_path: Path) -> None:
    parts = parts_of("sparse", place)
    key = next(k for k in parts.tensors if k.endswith(".mask"))
    parts.tensors[key] = (parts.tensors[key].view(np.uint8) * 2).view(np.bool_)
    assert answers(parts.write(tmp_path)) == ("refused", "refused")


Change = Callable[[Parts], object]


def architecture(**changes: Any) -> Change:
    return lambda parts: parts.description["architecture"].update(changes)


def construction(**changes: Any) -> Change:
    return lambda parts: parts.description["construction"].update(changes)


def described(**changes: Any) -> Change:
    return lambda parts: parts.description.update(changes)


def entry(change: Callable[[dict[str, Any]], object]) -> Change:
    """A change of the header of one tensor."""

    def apply(parts: Parts) -> None:
        name = list(parts.tensors)[-1]
        parts.header = lambda header: change(header[name])

    return apply


def no_heads(parts: Parts) -> None:
    for key in [k for k in parts.tensors if ".attention." in k and ".mask" not in k]:
        parts.tensors[key] = parts.tensors[key][:, :0]


def heads_of_size_0(parts: Parts) -> None:
    for key in [k for k in parts.tensors if ".attention." in k]:
        axis = {"W_O": 3, "gain": None, "mask": None}.get(key.rsplit(".", 1)[1], 2)
        if axis is not None:
            parts.tensors[key] = np.take(parts.tensors[key], [], axis=axis)


def no_units(parts: Parts) -> None:
    for key in [k for k in parts.tensors if ".feed_forward." in k]:
        axis = {"W_2": 2, "b_2": None}.get(key.rsplit(".", 1)[1], 1)
        if axis is not None:
            parts.tensors[key] = np.take(parts.tensors[key], [], axis=axis)


def nested(parts: Parts) -> None:
    value: Any = []
    for _ in range(500):
        value = [value]
    parts.description["construction"]["id_direction"] = value


INVALID: dict[str, Change] = {
    "no heads": no_heads,
    "heads of size 0": heads_of_size_0,
    "no hidden units": no_units,
    "no stages": lambda parts: parts.description["stages"].clear(),
    "a stage more": lambda parts: parts.description["stages"].append(["a", "b"]),
    "a stage's name is a number": lambda parts: parts.description["stages"][0].__setitem__(
        0, 5
    ),
    "version as text": described(version="1"),
    "version true": described(version=True),
    "architecture gone": described(architecture=None),
    "construction a list": described(construction=[]),
    "seq_len true": architecture(seq_len=True),
    "seq_len 0": architecture(seq_len=0),
    "seq_len 2.0": architecture(seq_len=2.0),
    "d_model huge": architecture(d_model=10**30),
    "num_heads negative": architecture(num_heads=-1),
    "d_ff text": architecture(d_ff="4"),
    "normaliser": architecture(normaliser="sparsemax"),
    "activation": architecture(activation="gelu"),
    "attention": architecture(attention="linear"),
    "positional 1": architecture(positional=1),
    "a key more": architecture(layers=7),
    "width without registers": architecture(width=7, num_prefix=0),
    "a pattern for nobody": architecture(pattern={"name": "a", "parts": [], "path": None}),
    "a pattern that is text": architecture(pattern="star"),
    "theorem": construction(theorem=9),
    "grid text": construction(grid="4"),
    "lows of another width": construction(lows=[0.0] * 9),
    "lows null": construction(lows=None),
    "id_low text": construction(id_low="many"),
    "id_low / 0": construction(id_low="1/0"),
    "reach negative": construction(reach=-1),
    "a direction of texts": construction(id_direction=["1"]),
    "deeply nested": nested,
    "dtype F32": entry(lambda values: values.update(dtype="F32")),
    "dtype null": entry(lambda values: values.update(dtype=None)),
    "shape null": entry(lambda values: values.update(shape=None)),
    "shape true": entry(lambda values: values["shape"].__setitem__(0, True)),
    "shape of floats": entry(
        lambda values: values.update(shape=[float(v) for v in values["shape"]])
    ),
    "shape negative": entry(
        lambda values: values.update(shape=[-v for v in values["shape"]])
    ),
    "offsets reversed": entry(lambda values: values["data_offsets"].reverse()),
    "offsets huge": entry(lambda values: values.update(data_offsets=[0, 10**40])),
    "a key more in a tensor": entry(lambda values: values.update(strides=[1])),
}


@pytest.mark.parametrize("change", INVALID)
def test_verify_and_load_refuse_the_same_files(
    change: str, place: Path, tmp_path: Path
) -> None:
    for name in ("Theorem 2", "exact Theorem 3", "wide", "sparse"):
        parts = parts_of(name, place)
        INVALID[change](parts)
        assert answers(parts.write(tmp_path)) == ("refused", "refused"), name


def test_masks_that_are_not_those_of_the_pattern(place: Path, tmp_path: Path) -> None:
    """`verify` once proved such a file, and `load` refused it."""
    parts = parts_of("sparse", place)
    key = next(k for k in parts.tensors if k.endswith(".mask"))
    parts.tensors[key] = np.broadcast_to(np.eye(3, dtype=bool), parts.tensors[key].shape)
    assert answers(parts.write(tmp_path)) == ("refused", "refused")


def test_a_key_twice(place: Path, tmp_path: Path) -> None:
    """Other readers take the first of two equal keys, Python the last."""
    folder = parts_of("Theorem 3", place).write(tmp_path)
    for file, key in ((NETWORK_FILE, b'"positions"'), ("certificate.json", b'"claim"')):
        data = (folder / file).read_bytes()
        (folder / file).write_bytes(data.replace(key, key + b": {}, " + key, 1))
        with pytest.raises(EveryformerError):
            ef.verify(folder)


def test_deeply_nested_metadata(place: Path, tmp_path: Path) -> None:
    parts = parts_of("Theorem 2", place)
    deep = "[" * 50_000 + "]" * 50_000

    def nest(header: dict[str, Any]) -> None:
        header["__metadata__"] = {"everyformer-network": deep}

    parts.header = nest
    assert answers(parts.write(tmp_path)) == ("refused", "refused")


@pytest.mark.parametrize("steps", [("version",), ("weights", "blocks"), ("claim", "n")])
def test_a_truth_value_is_not_an_integer_of_a_certificate(
    steps: tuple[str, ...], tmp_path: Path
) -> None:
    """`true` equals 1 in Python, and so did a version and a number of tokens."""
    ef.construct(ef.Target(lambda x: x, 1, 1), grid=2).save(tmp_path)
    edit(tmp_path, *steps, to=True)
    with pytest.raises(CertificateError):
        ef.verify(tmp_path)
