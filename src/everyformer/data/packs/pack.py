"""Packs: arrays of whole numbers with a checked header, in one file; nothing in it is run.

A pack is an .xz file (`xz -t` checks it, `xz -dc` unpacks it) of several streams. The first
holds a JSON header:

    format, version, name, licence
    tokeniser   sha256 of the vocabulary, its size, the ids of its special tokens
    sources     sha256 of each file that the pack was made from
    counts      of whatever the pack holds
    arrays      for each array its dtype, length and sha256, in the order of the streams

Each array follows, little-endian, cut into blocks of one stream each, so that blocks can be
compressed side by side. LZMA2 with lc=0, lp=1, pb=1 suits numbers of two bytes. The sha256
of the header names the pack: it covers every array.
"""

import base64
import hashlib
import json
import lzma
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.certify.shards import map_shards
from everyformer.data.packs.reading import (
    DTYPES,
    FORMAT,
    MOST_HEADER,
    VERSION,
    read_arrays,
    read_header,
)
from everyformer.errors import FileFormatError, InputError
from everyformer.progress import Progress, no_progress

SUFFIX = ".pack.xz"
BLOCK = 1 << 25
"""Bytes of an array that one stream holds."""


@dataclass(frozen=True, eq=False)
class Pack:
    """Arrays, and what is known of them.

    Attributes:
        header: As in the file.
        arrays: By name; nobody may write to them.
    """

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def name(self) -> str:
        """What it was called when it was made."""
        return self.header["name"]

    @cached_property
    def sha256(self) -> str:
        """Of the header, and so of everything: two packs are equal if these are."""
        return hashlib.sha256(_as_bytes(self.header)).hexdigest()

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return self.header["tokeniser"]["vocabulary"]

    @property
    def specials(self) -> dict[str, int]:
        """Ids of [PAD], [UNK], [CLS], [SEP] and [MASK]."""
        return self.header["tokeniser"]["specials"]


def new_pack(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Pack:
    """A pack of these arrays; the header gains their table.

    Raises:
        InputError: If an array is not one row of whole numbers of a kind that packs hold.
    """
    kept: dict[str, np.ndarray] = {}
    table: dict[str, Any] = {}
    for name, array in arrays.items():
        kind = array.dtype.name
        if array.ndim != 1 or kind not in DTYPES:
            msg = (
                f"The array {name!r} has shape {array.shape} and dtype {kind}. A pack "
                f"holds arrays of one dimension and dtype {', '.join(DTYPES)}."
            )
            raise InputError(msg)
        little = np.ascontiguousarray(array, dtype=DTYPES[kind])
        little.flags.writeable = False
        digest = hashlib.sha256(little.data).hexdigest()
        table[name] = {"dtype": kind, "length": len(array), "sha256": digest}
        kept[name] = little
    whole = {"format": FORMAT, "version": VERSION, **header, "arrays": table}
    return Pack(whole, kept)


def pack_of_files(
    name: str,
    licence: str,
    tokeniser: Mapping[str, Any],
    files: Iterable[Path],
    arrays: Mapping[str, np.ndarray],
    counts: Mapping[str, int],
) -> Pack:
    """A pack in memory, of arrays that were made from these files."""
    sources = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in files}
    header = {"name": name, "licence": licence, "tokeniser": tokeniser}
    return new_pack({**header, "sources": sources, "counts": counts}, arrays)


def write_pack(
    path: Path,
    header: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    *,
    workers: int = 1,
    work: Path | None = None,
    progress: Progress = no_progress,
) -> Pack:
    """Write a pack; its file appears whole or not at all.

    Args:
        path: Of the file; its folder exists, and the file does not.
        header: name, licence, tokeniser, sources, counts.
        arrays: One dimension each.
        workers: Processes that compress.
        work: Folder that keeps compressed blocks; a later call goes on from there.
        progress: Called after every block.

    Raises:
        FileExistsError: If there is such a file already.
        InputError: If an array cannot be packed.
    """
    refuse_existing(path)
    pack = new_pack(header, arrays)
    parts = [part for array in pack.arrays.values() for part in _blocks(array.tobytes())]
    found = map_shards(
        _compressed_block, parts, len(parts), what=f"compress {pack.name}",
        workers=workers, work=work, key=pack.sha256, progress=progress,
    )  # fmt: skip
    streams = [_compressed(_as_bytes(pack.header), check=lzma.CHECK_SHA256)]
    streams += [base64.b64decode(one["xz"]) for one in found]
    try:
        _write(path, work or path.parent, streams)
    except OSError as error:
        size = sum(map(len, streams)) / 2**20
        reason = (
            f"{error.strerror}: the pack of {size:.1f} MiB could not be written, and no "
            "part of it was left. Make room, or give another folder (--to)"
        )
        raise OSError(error.errno, reason, str(path)) from error
    return pack


def read_pack(path: Path, *, tokeniser: str | None = None) -> Pack:
    """Read a pack and check every byte of it.

    Args:
        path: Of the file.
        tokeniser: sha256 of the vocabulary that the pack must be made with, if any.

    Raises:
        FileFormatError: If it is not a pack, is damaged, or has another tokeniser.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            streams, header = read_header(file, size)
            arrays = read_arrays(streams, header)
    except (ValueError, lzma.LZMAError, EOFError) as error:
        msg = (
            f"{path} is not a whole pack: {str(error).rstrip('.')}. Copy it again, or "
            "make it anew with `everyformer data pack`; `everyformer data list` says how."
        )
        raise FileFormatError(msg) from error
    pack = Pack(header, arrays)
    if tokeniser is not None:
        check_tokeniser(pack, tokeniser)
    return pack


def check_tokeniser(pack: Pack, tokeniser: str) -> None:
    """Refuse a pack whose token ids mean something else.

    Raises:
        FileFormatError: If its vocabulary has another sha256.
    """
    own = pack.header["tokeniser"]["sha256"]
    if own != tokeniser:
        msg = (
            f"The pack {pack.name!r} was made with the vocabulary {own[:12]}, not with "
            f"{tokeniser[:12]}: its token ids mean other words. Make all packs of an "
            "experiment with one vocabulary."
        )
        raise FileFormatError(msg)


def pack_path(folder: Path, name: str) -> Path:
    """Where the pack of a name lies in a folder."""
    return folder / f"{name}{SUFFIX}"


def refuse_existing(path: Path) -> None:
    """Never write over a file.

    Raises:
        FileExistsError: If something is there.
    """
    if path.exists():
        msg = (
            f"{path} exists already and is kept. Delete it to make it anew, or give "
            "another folder (--to)."
        )
        raise FileExistsError(msg)


def _write(path: Path, folder: Path, streams: list[bytes]) -> None:
    """Write to a place in `folder`; it becomes `path`, or vanishes after an error."""
    place = folder / f".{path.name}.{os.getpid()}"
    try:
        with place.open("wb") as file:
            file.writelines(streams)
            file.flush()
            os.fsync(file.fileno())
        place.replace(path)
    finally:
        place.unlink(missing_ok=True)


def _blocks(raw: bytes) -> list[bytes]:
    return [raw[start : start + BLOCK] for start in range(0, len(raw), BLOCK)]


def _compressed_block(blocks: list[bytes], index: int) -> dict[str, Any]:
    return {"xz": base64.b64encode(_compressed(blocks[index])).decode()}


def _compressed(raw: bytes, check: int = lzma.CHECK_CRC32) -> bytes:
    chain = {
        "id": lzma.FILTER_LZMA2,
        "preset": 9,
        "lc": 0,
        "lp": 1,
        "pb": 1,
        "dict_size": max(1 << 12, min(BLOCK, 1 << len(raw).bit_length())),
    }
    return lzma.compress(raw, lzma.FORMAT_XZ, check, filters=[chain])


def _as_bytes(header: Mapping[str, Any]) -> bytes:
    """The one JSON text of a header, whoever writes it.

    Raises:
        InputError: If it is too long.
    """
    text = json.dumps(header, sort_keys=False, separators=(",", ":"), allow_nan=False)
    if len(text) > MOST_HEADER:
        msg = f"The header has {len(text)} characters; a pack holds {MOST_HEADER}."
        raise InputError(msg)
    return text.encode()


def needs(pack: Pack, *names: str, tokens: tuple[str, ...] = ()) -> None:
    """Refuse a pack of another kind, and token ids that its vocabulary does not have.

    Raises:
        FileFormatError: If arrays are missing, or ids too large.
    """
    missing = [name for name in names if name not in pack.arrays]
    if missing:
        msg = (
            f"The pack {pack.name!r} has no arrays {', '.join(missing)}, so it is of "
            "another kind. `everyformer data list` says which pack is for what."
        )
        raise FileFormatError(msg)
    for name in tokens:
        ids = pack.arrays[name]
        least, largest = int(ids.min(initial=0)), int(ids.max(initial=0))
        if least < 0 or largest >= pack.vocabulary:
            wrong = least if least < 0 else largest
            msg = (
                f"{name!r} of the pack {pack.name!r} has the token id {wrong}, but its "
                f"vocabulary has {pack.vocabulary} pieces. Make the pack anew."
            )
            raise FileFormatError(msg)


def article_lengths(pack: Pack, split: str, unit: str = "tokens") -> np.ndarray:
    """How long each article of a text is, counted in the unit of the pack.

    Raises:
        FileFormatError: If articles do not begin one after the other within the text.
    """
    starts, count = pack.arrays[f"{split}_articles"], len(pack.arrays[split])
    lengths = np.diff(starts.astype(np.int64), append=count)
    if not len(starts) or starts[0] != 0 or (lengths <= 0).any():
        msg = (
            f"The {len(starts)} articles of the {split} text of the pack {pack.name!r} do "
            f"not begin one after the other within its {count:,} {unit}. Make it anew."
        )
        raise FileFormatError(msg)
    return lengths
