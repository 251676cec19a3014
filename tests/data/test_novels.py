"""Novels as bytes: what is read, held out and cut, and that the pack is checked."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from everyformer.data.packs.novels import HELD_OUT, bytes_tokeniser, novel_arrays
from everyformer.data.packs.pack import read_pack, write_pack
from everyformer.errors import FileFormatError

HELD = [name for split in HELD_OUT.values() for name in split]


def archive(path: Path, novels: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:xz") as files:
        for name, text in novels.items():
            found = tarfile.TarInfo(name)
            found.size = len(text)
            files.addfile(found, io.BytesIO(text))
    return path


def written(path: Path, **more: bytes) -> Path:
    novels = {name: f"{name}\r\n".encode() for name in HELD}
    novels |= {"A_One_1900": b"\xef\xbb\xbfOne\r\nCaf\xc3\xa9\r\n", "B_Two_1901": b"Two\n"}
    named = {f"english-novels/corpus/{k}.txt": v for k, v in (novels | more).items()}
    return archive(path, {"english-novels/SHA256SUMS": b"x", **named})


def test_novels_become_bytes_and_splits(tmp_path: Path) -> None:
    arrays, counts = novel_arrays(written(tmp_path / "novels.tar.xz"))
    texts = {name: arrays[name].tobytes().decode() for name in ("train", "validation")}
    assert sorted(texts["train"].replace("Two\n", "")) == sorted("One\nCafé\n")
    assert texts["validation"] == "".join(f"{x}\n" for x in HELD_OUT["validation"])
    assert counts["train_novels"] == 2
    assert counts["test_bytes"] == len(arrays["test"])
    begins = arrays["validation_novels"].tolist()
    assert begins[1] == len(HELD_OUT["validation"][0]) + 1
    cut, few = novel_arrays(tmp_path / "novels.tar.xz", tokens=12)
    assert few["train_novels"] == 1
    assert len(cut["train"]) <= 12
    header = {"name": "n", "licence": "none", "tokeniser": bytes_tokeniser()}
    path = tmp_path / "n.pack.xz"
    write_pack(path, header | {"sources": {}, "counts": counts}, arrays)
    assert np.array_equal(read_pack(path).arrays["train"], arrays["train"])
    assert read_pack(path).vocabulary == 256


def test_other_archives_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="lacks Doyle_Lost_1912, Forster"):
        novel_arrays(archive(tmp_path / "a.tar.xz", {"english-novels/corpus/x.txt": b"x"}))
    with pytest.raises(FileFormatError, match=r"C_Odd_1.txt in .* is not UTF-8"):
        novel_arrays(written(tmp_path / "b.tar.xz", C_Odd_1=b"\xff\xfe"))
