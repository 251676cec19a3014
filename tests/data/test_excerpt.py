"""Packs without data: the same everywhere, small, readable, and of one vocabulary."""

from pathlib import Path

import pytest
from tests.data.excerpt_packs import excerpt_packs

from everyformer.data.packs.excerpt import (
    excerpt,
    sentences,
    towns,
    vocabulary,
)
from everyformer.data.packs.pack import read_pack
from everyformer.data.packs.wordpiece import read_vocabulary
from everyformer.data.randomness import SPLITS
from everyformer.errors import FileFormatError, InputError

DIGESTS = {
    "excerpt-enwiki": "f5deb57057fa",
    "excerpt-nli": "9a0f0300a71b",
    "excerpt-squad": "4824de81af3e",
}
KINDS = ("enwiki-wp", "nli", "squad")


def test_the_packs_are_the_same_everywhere(tmp_path: Path) -> None:
    """Results name these hashes."""
    found = {excerpt(name).name: excerpt(name).sha256[:12] for name in KINDS}
    assert found == DIGESTS
    paths = excerpt_packs(tmp_path / "new")
    assert [read_pack(path).sha256 for path in paths] == [excerpt(k).sha256 for k in KINDS]
    assert sum(path.stat().st_size for path in paths) < 100_000
    assert excerpt("enwiki-wp-48m").sha256 == excerpt("enwiki-wp").sha256
    digests = {excerpt(name).header["tokeniser"]["sha256"] for name in KINDS}
    assert len(digests) == 1
    with pytest.raises(InputError, match="is not a pack"):
        excerpt("weather")


def test_no_word_is_unknown_and_facts_recur() -> None:
    unknown = vocabulary().vocabulary.index("[UNK]")
    for name, key in (("enwiki-wp", "train"), ("nli", "tokens"), ("squad", "contexts")):
        assert not (excerpt(name).arrays[key] == unknown).any()
    assert not {town.name for town in towns("train")} & {t.name for t in towns("test")}
    regions = {town.region for town in towns("train")}
    assert {town.region for split in SPLITS for town in towns(split)} == regions
    town = towns("train")[0]
    assert sum(town.crop in sentence for sentence in sentences(town)) == 2


def test_files_that_are_no_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    words = vocabulary().vocabulary
    path.write_text("\n".join(words) + "\n")
    assert read_vocabulary(path, sha256=None).vocabulary == words
    with pytest.raises(FileFormatError, match="is another vocabulary: its sha256 begins"):
        read_vocabulary(path)
    for bad in (words[:4], (*words, words[-1])):
        path.write_text("\n".join(bad))
        with pytest.raises(FileFormatError, match="every piece once"):
            read_vocabulary(path, sha256=None)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(FileFormatError, match="is not text in UTF-8"):
        read_vocabulary(path, sha256=None)
