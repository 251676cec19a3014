"""What lies in the file of a pack, believed only after it was checked.

A file may say anything about itself. So sizes are compared with the size of the file before
a byte is unpacked, what is unpacked is held as it comes and never beyond what was stated,
and the memory of the decoder is limited.
"""

import hashlib
import lzma
import re
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from everyformer.files.strict_json import read_json

FORMAT, VERSION = "everyformer-pack", 1
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name).newbyteorder("<") for name in ("uint8", "uint16", "int32", "int64")
}
MOST_HEADER = 1 << 20
MOST_BYTES = 1 << 32
"""Of all arrays of a pack together, unpacked."""

MOST_RATIO = 64
"""Of unpacked bytes to those of the file, beyond the first MiB; packs have 2 to 6."""

DECODER_BYTES = 1 << 27
PIECE = 1 << 20
KEYS = {
    "format", "version", "name", "licence", "tokeniser", "sources", "counts", "arrays",
}  # fmt: skip
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Of a vocabulary of WordPieces."""

UNK, EOS = "<unk>", "<eos>"
"""Of a vocabulary of whole words; one of bytes has no special tokens."""

PAD, BEGIN, END = "<pad>", "<s>", "</s>"
"""Of a vocabulary of byte pairs."""


def tokeniser_of(
    sha256: str, pieces: Sequence[str], specials: Sequence[str]
) -> dict[str, Any]:
    """What the header of a pack says of its token ids: a piece's id is its place."""
    ids = {one: pieces.index(one) for one in specials}
    return {"sha256": sha256, "vocabulary": len(pieces), "specials": ids}


class Streams:
    """The unpacked bytes of a file of xz streams, one after the other."""

    def __init__(self, file: BinaryIO) -> None:
        """From the beginning of an open file."""
        self._file = file
        self._ahead = b""
        self._decoder: lzma.LZMADecompressor | None = None

    def exactly(self, count: int) -> bytearray:
        """The next bytes, which must end with a stream.

        Raises:
            ValueError: If fewer or more come.
        """
        found = bytearray()
        while len(found) < count or self._decoder is not None:
            found += self._some(count - len(found))
        return found

    def up_to(self, most: int) -> bytearray:
        """All bytes of the next stream.

        Raises:
            ValueError: If there are more than `most`.
        """
        found = self._some(most)
        while self._decoder is not None:
            found += self._some(most - len(found))
        return found

    def at_end(self) -> bool:
        """Whether nothing is left in the file."""
        return not self._ahead and not self._file.read(1)

    def _some(self, most: int) -> bytearray:
        """What one piece of the file gives, at most `most` bytes; one more is refused."""
        if self._decoder is None:
            self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, DECODER_BYTES)
        given = b""
        if self._decoder.needs_input:
            given = self._ahead or self._file.read(PIECE)
            self._ahead = b""
            if not given:
                msg = "it ends too early"
                raise ValueError(msg)
        found = self._decoder.decompress(given, max_length=min(most, PIECE) + 1)
        if len(found) > most:
            msg = "it holds more numbers than its header says"
            raise ValueError(msg)
        if self._decoder.eof:
            self._ahead, self._decoder = self._decoder.unused_data, None
        return bytearray(found)


def read_header(file: BinaryIO, size: int) -> tuple[Streams, dict[str, Any]]:
    """The header of a file of `size` bytes, and the streams behind it.

    Raises:
        ValueError: If it is not the header of a pack.
    """
    streams = Streams(file)
    header = read_json(bytes(streams.up_to(MOST_HEADER)))
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        msg = f"it does not begin with the header of an {FORMAT}"
        raise ValueError(msg)
    if type(header.get("version")) is not int or header["version"] != VERSION:
        version = f"{header.get('version')!r:.40}"
        msg = f"it has version {version}, and this program reads {VERSION}"
        raise ValueError(msg)
    if set(header) != KEYS:
        msg = f"its header lacks or adds {sorted(set(header) ^ KEYS)[:4]}"
        raise ValueError(msg)
    _check_texts(header)
    _check_tokeniser(header["tokeniser"])
    _check_table(header["arrays"], size)
    return streams, header


def read_arrays(streams: Streams, header: dict[str, Any]) -> dict[str, np.ndarray]:
    """The arrays that the header lists.

    Raises:
        ValueError: If one of them is not what the header says, or more follows.
    """
    found: dict[str, np.ndarray] = {}
    for name, entry in header["arrays"].items():
        kind = DTYPES[entry["dtype"]]
        raw = streams.exactly(entry["length"] * kind.itemsize)
        if hashlib.sha256(raw).hexdigest() != entry["sha256"]:
            msg = f"the array {name!r} does not have the sha256 of the header"
            raise ValueError(msg)
        found[name] = np.frombuffer(raw, dtype=kind)
        found[name].flags.writeable = False
    if not streams.at_end():
        msg = "something follows the last array"
        raise ValueError(msg)
    return found


def _check_texts(header: dict[str, Any]) -> None:
    plain = all(isinstance(header[key], str) for key in ("name", "licence"))
    sources, counts = header["sources"], header["counts"]
    hashed = isinstance(sources, dict) and all(_is_digest(one) for one in sources.values())
    if not (plain and hashed and isinstance(counts, dict)):
        msg = "name, licence, sources or counts in its header are not what they should be"
        raise ValueError(msg)


def _check_tokeniser(tokeniser: Any) -> None:
    """Ids below the size of the vocabulary, which fits the numbers of a pack."""
    good = (
        isinstance(tokeniser, dict)
        and set(tokeniser) == {"sha256", "vocabulary", "specials"}
        and _is_digest(tokeniser["sha256"])
        and type(tokeniser["vocabulary"]) is int
        and isinstance(tokeniser["specials"], dict)
        and set(tokeniser["specials"])
        in (set(SPECIALS), {UNK, EOS}, {PAD, BEGIN, END}, set())
        and len(tokeniser["specials"]) <= tokeniser["vocabulary"] <= 1 << 16
        and len(set(map(repr, tokeniser["specials"].values())))
        == len(tokeniser["specials"])
        and all(
            type(one) is int and 0 <= one < tokeniser["vocabulary"]
            for one in tokeniser["specials"].values()
        )
    )
    if not good:
        msg = "its header does not describe a tokeniser"
        raise ValueError(msg)


def _check_table(arrays: Any, size: int) -> None:
    if not isinstance(arrays, dict):
        msg = "its header has no table of arrays"
        raise ValueError(msg)
    total = 0
    for name, entry in arrays.items():
        good = (
            isinstance(entry, dict)
            and set(entry) == {"dtype", "length", "sha256"}
            and isinstance(entry["dtype"], str)
            and entry["dtype"] in DTYPES
            and type(entry["length"]) is int
            and entry["length"] >= 0
            and _is_digest(entry["sha256"])
        )
        if not good:
            msg = f"its header does not say what the array {name[:40]!r} is"
            raise ValueError(msg)
        total += entry["length"] * DTYPES[entry["dtype"]].itemsize
    if total > min(MOST_BYTES, MOST_RATIO * size + PIECE):
        msg = f"a file of {size} bytes that states arrays of {total} bytes is not believed"
        raise ValueError(msg)


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None
