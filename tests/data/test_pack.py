"""A pack on disk: what is written is read, whole or not at all."""

import errno
import lzma
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everyformer.data.packs import pack as packs
from everyformer.data.packs.pack import Pack, new_pack, read_pack, write_pack
from everyformer.errors import FileFormatError, InputError

HEADER: dict[str, Any] = {
    "name": "little",
    "licence": "none",
    "tokeniser": {
        "sha256": "0" * 64,
        "vocabulary": 100,
        "specials": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4},
    },
    "sources": {"a.txt": "1" * 64},
    "counts": {"tokens": 3000},
}
ARRAYS = {
    "tokens": (np.arange(3000) ** 2 % 97).astype(np.uint16),
    "bytes": np.array([0, 255, 7], np.uint8),
    "signed": np.array([-(2**31), 2**31 - 1], np.int32),
    "wide": np.array([-(2**63), 2**63 - 1], np.int64),
    "nothing": np.array([], np.uint16),
}


def test_what_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in blocks, and by the program xz."""
    one = write_pack(tmp_path / "one.pack.xz", HEADER, ARRAYS)
    monkeypatch.setattr(packs, "BLOCK", 1000)
    write_pack(tmp_path / "two.pack.xz", HEADER, ARRAYS)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "one.pack.xz",
        "two.pack.xz",
    ]
    for name in ("one", "two"):
        found = read_pack(tmp_path / f"{name}.pack.xz", tokeniser="0" * 64)
        assert found.header == one.header
        assert found.sha256 == one.sha256
        assert (found.name, found.vocabulary, found.specials["[MASK]"]) == (
            "little",
            100,
            4,
        )
        assert list(found.arrays) == list(ARRAYS)
        for key, array in ARRAYS.items():
            assert found.arrays[key].dtype == array.dtype
            assert np.array_equal(found.arrays[key], array)
            assert not found.arrays[key].flags.writeable
        raw = lzma.decompress((tmp_path / f"{name}.pack.xz").read_bytes())
        assert raw.endswith(b"".join(array.tobytes() for array in ARRAYS.values()))


def test_the_sha256_names_the_content() -> None:
    other = {**ARRAYS, "bytes": np.array([0, 255, 8], np.uint8)}
    digests = {
        new_pack(HEADER, ARRAYS).sha256,
        new_pack(HEADER, other).sha256,
        new_pack({**HEADER, "licence": "some"}, ARRAYS).sha256,
    }
    assert len(digests) == 3


def test_another_tokeniser_is_refused(tmp_path: Path) -> None:
    write_pack(tmp_path / "a.pack.xz", HEADER, ARRAYS)
    with pytest.raises(FileFormatError, match="made with the vocabulary 000000000000, not"):
        read_pack(tmp_path / "a.pack.xz", tokeniser="2" * 64)


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "a.pack.xz"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="Delete it to make it anew, or give"):
        write_pack(path, HEADER, ARRAYS)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("work", [False, True])
def test_a_full_disk_leaves_nothing(
    work: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "a.pack.xz"
    folder = tmp_path / "work" if work else None
    with monkeypatch.context() as patch:
        patch.setattr(packs.os, "fsync", full)
        with pytest.raises(OSError, match="no part of it was left") as told:
            write_pack(path, HEADER, ARRAYS, work=folder)
    assert told.value.errno == errno.ENOSPC
    assert not [
        one for one in tmp_path.rglob("*") if one.is_file() and "a.pack" in one.name
    ]
    write_pack(path, HEADER, ARRAYS, work=folder)
    assert read_pack(path).name == "little"


def test_finished_blocks_are_not_compressed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "BLOCK", 1000)
    work, done = tmp_path / "work", list[int]()

    def dies(what: str, count: int, total: int) -> None:
        if count == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_pack(tmp_path / "a.pack.xz", HEADER, ARRAYS, work=work, progress=dies)
    write_pack(
        tmp_path / "a.pack.xz", HEADER, ARRAYS, work=work,
        progress=lambda what, count, total: done.append(count),
    )  # fmt: skip
    assert done[0] == 4
    assert np.array_equal(read_pack(tmp_path / "a.pack.xz").arrays["wide"], ARRAYS["wide"])


@pytest.mark.parametrize(
    "array", [np.zeros((2, 2), np.uint8), np.zeros(2), np.array(["a"]), np.array([None])]
)
def test_only_rows_of_whole_numbers_are_packed(array: np.ndarray) -> None:
    with pytest.raises(InputError, match="holds arrays of one dimension and dtype uint8"):
        new_pack(HEADER, {"a": array})


def test_a_pack_of_another_kind_is_named(tmp_path: Path) -> None:
    pack = new_pack(HEADER, ARRAYS)
    with pytest.raises(FileFormatError, match="has no arrays premises, so it is"):
        packs.needs(pack, "tokens", "premises")
    large = Pack({**pack.header, "tokeniser": {"vocabulary": 90}}, pack.arrays)
    with pytest.raises(FileFormatError, match="token id 96, but its vocabulary has 90"):
        packs.needs(large, tokens=("tokens",))


def test_reading_needs_no_torch_and_no_pickle(tmp_path: Path) -> None:
    """What could run code is not even imported by the reader."""
    program = (
        "import sys; from everyformer.data.packs import reading; "
        "print(*{'torch', 'pickle', 'marshal'} & set(vars(reading)), 'torch' in "
        "sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.stdout.split() == ["False"], told
