"""Attacks on packs: damaged files, headers that lie, bombs. All are refused."""

import json
import lzma
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everyformer.data.packs import reading
from everyformer.data.packs.pack import new_pack, read_pack, write_pack
from everyformer.errors import FileFormatError

HEADER: dict[str, Any] = {
    "name": "victim",
    "licence": "none",
    "tokeniser": {
        "sha256": "0" * 64,
        "vocabulary": 100,
        "specials": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4},
    },
    "sources": {},
    "counts": {},
}
ARRAYS = {"a": np.arange(40, dtype=np.uint16), "b": np.array([1, 2], np.uint8)}
RAW = b"".join(array.tobytes() for array in ARRAYS.values())
Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    write_pack(tmp_path / "victim.pack.xz", HEADER, ARRAYS)
    return tmp_path / "victim.pack.xz"


def refused(path: Path, why: str = "") -> None:
    with pytest.raises(FileFormatError, match=rf"not a whole pack.*{why}.*Copy it again"):
        read_pack(path)


def forged(path: Path, header: bytes, *streams: bytes) -> Path:
    """A file whose checks of xz all hold, whatever it says."""
    path.write_bytes(b"".join(lzma.compress(one, preset=0) for one in (header, *streams)))
    return path


def test_every_flipped_byte(whole: Path) -> None:
    """In the header, in the arrays, in the padding and indices between them."""
    good = whole.read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        whole.write_bytes(bad)
        with pytest.raises(FileFormatError):
            read_pack(whole)


def test_every_truncation_and_what_is_appended(whole: Path) -> None:
    good = whole.read_bytes()
    for size in range(0, len(good), 3):
        whole.write_bytes(good[:size])
        with pytest.raises(FileFormatError):
            read_pack(whole)
    for more in (b"\0" * 4, b"x", good, lzma.compress(b"")):
        whole.write_bytes(good + more)
        refused(whole)


def test_streams_that_are_exchanged_repeated_or_left_out(tmp_path: Path) -> None:
    header = json.dumps(new_pack(HEADER, ARRAYS).header).encode()
    a, b = (array.tobytes() for array in ARRAYS.values())
    read_pack(forged(tmp_path / "good", header, a, b))
    read_pack(forged(tmp_path / "good", header, a[:10], a[10:], b"", b))
    for streams in ((b, a), (a,), (a, a, b), (a + b,), (a, b, b), (a + b[:1], b[1:]), ()):
        refused(forged(tmp_path / "bad", header, *streams))


LIES: dict[str, Change] = {
    "one number more": lambda h: h["arrays"]["b"].update(length=3),
    "one number less": lambda h: h["arrays"]["b"].update(length=1),
    "a number less than none": lambda h: h["arrays"]["b"].update(length=-1),
    "a length that is true": lambda h: h["arrays"]["b"].update(length=True),
    "a length with a point": lambda h: h["arrays"]["b"].update(length=2.0),
    "more bytes than a disk has": lambda h: h["arrays"]["b"].update(length=10**15),
    "more digits than a number": lambda h: h["arrays"]["b"].update(length=10**400),
    "another dtype": lambda h: h["arrays"]["a"].update(dtype="uint8"),
    "floats": lambda h: h["arrays"]["a"].update(dtype="float16"),
    "objects": lambda h: h["arrays"]["a"].update(dtype="O"),
    "a dtype that is a list": lambda h: h["arrays"]["a"].update(dtype=["uint8"]),
    "another sha256": lambda h: h["arrays"]["a"].update(sha256="0" * 64),
    "a sha256 that is none": lambda h: h["arrays"]["a"].update(sha256="z" * 64),
    "one array less": lambda h: h["arrays"].pop("b"),
    "one array more": lambda h: h["arrays"].update(c=h["arrays"]["b"]),
    "an array that is none": lambda h: h["arrays"].update(b=None),
    "no table": lambda h: h.update(arrays=[]),
    "another version": lambda h: h.update(version=2),
    "a version that is true": lambda h: h.update(version=True),
    "another format": lambda h: h.update(format="zip"),
    "no licence": lambda h: h.pop("licence"),
    "a key too many": lambda h: h.update(run="import os"),
    "a name that is a list": lambda h: h.update(name=["victim"]),
    "sources without sha256": lambda h: h.update(sources={"a": 1}),
    "no tokeniser": lambda h: h.update(tokeniser=None),
    "no [MASK]": lambda h: h["tokeniser"]["specials"].pop("[MASK]"),
    "[MASK] beyond the vocabulary": lambda h: h["tokeniser"]["specials"].update(
        {"[MASK]": 100}
    ),
    "[MASK] that is [PAD]": lambda h: h["tokeniser"]["specials"].update({"[MASK]": 0}),
    "a vocabulary beyond two bytes": lambda h: h["tokeniser"].update(vocabulary=65537),
}


@pytest.mark.parametrize("lie", LIES)
def test_headers_that_lie(lie: str, tmp_path: Path) -> None:
    header = json.loads(json.dumps(new_pack(HEADER, ARRAYS).header))
    LIES[lie](header)
    streams = [array.tobytes() for array in ARRAYS.values()]
    refused(forged(tmp_path / "bad", json.dumps(header).encode(), *streams))


TEXTS: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "no object": b"[]",
    "no text": b"\xff\xfe\x00",
    "NaN": b'{"format": NaN}',
    "too deep": b"[" * 10**5,
    "a pickle": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.",
}


@pytest.mark.parametrize("text", TEXTS)
def test_headers_that_are_none(text: str, tmp_path: Path) -> None:
    refused(forged(tmp_path / "bad", TEXTS[text]))


def test_keys_that_occur_twice(tmp_path: Path) -> None:
    good = json.dumps(new_pack(HEADER, ARRAYS).header)
    for old, new in (('"name"', '"name": "x", "name"'), ('"b": {', '"a": {')):
        text = good.replace(old, new, 1)
        assert text != good
        streams = [array.tobytes() for array in ARRAYS.values()]
        refused(forged(tmp_path / "bad", text.encode(), *streams), "occurs twice")


def test_files_that_are_no_packs(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("PK not a pack")
    (tmp_path / "zeros").write_bytes(bytes(1000))
    for name in ("empty", "text", "zeros"):
        refused(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_pack(tmp_path / "none")


def _stating(length: int, sha256: str = "0" * 64) -> bytes:
    header = new_pack(HEADER, {"a": np.zeros(1, np.uint8)}).header
    table = {"a": {"dtype": "uint8", "length": length, "sha256": sha256}}
    return json.dumps({**header, "arrays": table}).encode()


def test_bombs_do_not_take_memory(tmp_path: Path) -> None:
    """32 MiB of zeros in 5 kB: behind a small statement, a large one, and as a header."""
    zeros = bytes(1 << 25)
    bombs = {
        "more than stated": forged(tmp_path / "1", _stating(1000), zeros),
        "not believed": forged(tmp_path / "2", _stating(len(zeros)), zeros),
        "more numbers than": forged(tmp_path / "3", b" " * (1 << 25)),
    }
    del zeros
    tracemalloc.start()
    try:
        for path in bombs.values():
            refused(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 22
    refused(bombs["not believed"], "is not believed")


def test_a_decoder_that_asks_for_memory(tmp_path: Path) -> None:
    """The header of a block may ask for a dictionary of 4 GiB before any byte comes."""
    raw = bytearray(lzma.compress(_stating(0)))
    size = 4 * (raw[12] + 1)
    assert raw[14:16] == b"\x21\x01", "the filter LZMA2, with one byte of properties"
    raw[16] = 40
    checked = slice(12, 12 + size - 4)
    raw[12 + size - 4 : 12 + size] = zlib.crc32(raw[checked]).to_bytes(4, "little")
    (tmp_path / "bad").write_bytes(raw)
    assert reading.DECODER_BYTES < 1 << 32
    refused(tmp_path / "bad", "[Mm]emory")
