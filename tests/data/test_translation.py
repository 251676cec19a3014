"""Translations: byte pairs, packs, buckets by tokens, and what a batch holds."""

from pathlib import Path

import numpy as np
import pytest
import torch

from everyformer.data.batch import FILLING, Draw
from everyformer.data.packs.bpe import BytePairs, learnt
from everyformer.data.packs.excerpt import excerpt
from everyformer.data.packs.pack import Pack, new_pack, read_pack, write_pack
from everyformer.data.packs.translation import (
    Sentence,
    aligned_pairs,
    table_pairs,
    translation_arrays,
)
from everyformer.data.packs.translation_excerpt import translation_excerpt
from everyformer.data.translation import TokenBuckets, Translations
from everyformer.errors import FileFormatError, InputError

CPU = torch.device("cpu")
KEYS = ("name", "licence", "tokeniser", "sources", "counts")


def changed(pack: Pack, header: dict[str, object], **arrays: np.ndarray) -> Pack:
    kept = {key: pack.header[key] for key in KEYS} | header
    return new_pack(kept, {**pack.arrays, **arrays})


def test_byte_pairs_give_back_every_text_and_are_the_same_each_time() -> None:
    texts = ["Ich erkläre  die Sitzung für eröffnet. „Gut“ – 5 €.\t", "🙂 naïve\u200b"] * 3
    pairs = learnt(texts, 290)
    assert pairs == learnt(texts, 290)
    assert [pairs.text(ids) for ids in pairs.ids(texts)] == texts
    unseen = "Ωmega, 東京 — ÿ\x00"
    ids = next(pairs.ids([unseen]))
    assert pairs.text([1, *ids, 2, 0]) == unseen
    assert min(ids) > 2, "text never makes a special token"
    assert next(pairs.ids(["</s>"])) != [2]
    assert BytePairs.from_array(pairs.to_array(), pairs.sha256) == pairs
    with pytest.raises(FileFormatError, match="read as other words"):
        BytePairs.from_array(pairs.to_array(), "0" * 64)
    with pytest.raises(FileFormatError, match="not a vocabulary of byte pairs"):
        BytePairs((*pairs.pieces, "xyzzy"), pairs.merges)
    with pytest.raises(FileFormatError, match=r"id 290 is beyond 290"):
        pairs.text([290])


def test_a_batch_holds_source_target_and_labels() -> None:
    pack = translation_excerpt()
    task = Translations(pack, 0, lengths=(16, 32, 64))
    draws = list(task.evaluation("test", 512, 0, 1, CPU))
    assert {draw.length for draw in draws} <= {16, 32, 64}
    seen: list[int] = []
    for draw in draws:
        batch = task.batch("test", draw)
        assert batch.target is not None
        assert batch.padding is not None
        assert 2 * batch.tokens.numel() <= 512 < 2 * batch.tokens.numel() + 2 * draw.length
        for row, number in enumerate(draw.numbers.tolist()):
            labels = batch.labels[row][batch.weights[row] > 0].tolist()
            if number == FILLING:
                assert labels == []
                continue
            seen.append(number)
            assert labels[-1] == 2
            assert batch.target[row, : len(labels)].tolist() == [1, *labels[:-1]]
            here = task.members("test")[[number]]
            assert [task.pieces.text(labels)] == task.texts(here)
            source = batch.tokens[row][~batch.padding[row]].tolist()
            assert source[-1] == 2
            assert len(source) == task.sizes("test")[0][number]
    assert sorted(seen) == list(range(len(task.members("test"))))
    alone = task.pairs(task.members("test")[3:5], 64, CPU)
    assert alone.weights.sum() == task.sizes("test")[1][3:5].sum()
    short = Translations(pack, 0, lengths=(16, 24))
    assert max(short.sizes("train")[1]) <= 24, "longer pairs are left out"


def test_every_pair_once_an_epoch_in_batches_of_equal_tokens() -> None:
    sizes = np.random.default_rng(0).integers(2, 65, 1003)
    buckets = TokenBuckets(sizes, (16, 32, 64), seed=3)
    for epoch in (None, 0, 1):
        plan = buckets.plan(epoch, 1024)
        real = plan.numbers[plan.numbers != FILLING]
        assert sorted(real.tolist()) == list(range(len(sizes)))
    count = buckets.batches(1024)
    assert count == len(buckets.plan(0, 1024).lengths)
    for step in (0, count - 1, count, 2 * count + 1):
        draw = buckets.draw(step, 1024, 0, 1, CPU)
        assert 2 * len(draw.numbers) * draw.length == 1024
        halves = [buckets.draw(step, 1024, part, 2, CPU).numbers for part in range(2)]
        assert torch.equal(torch.cat(halves), draw.numbers)
        assert (sizes[draw.numbers[draw.numbers >= 0]] <= draw.length).all()
    with pytest.raises(InputError, match=r"batch of 100 tokens.*2 x 64"):
        buckets.plan(0, 100)


def test_sums_are_scaled_to_a_mean_over_tokens() -> None:
    task = Translations(translation_excerpt(), 0, lengths=(64,), evaluated=3)
    rows = {"nats": np.array([2.0, 30.0, 4.0]), "tokens": np.array([1.0, 10.0, 1.0])}
    found = task.judged("test", rows, np.arange(3))
    assert set(found) == {"nats"}
    assert found["nats"].mean() == pytest.approx(36 / 12)
    assert len(task.clusters("test")) == 3


def test_sources_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    one, other = tmp_path / "a.en", tmp_path / "a.de"
    one.write_text("a b\nc d\n")
    other.write_text("e f\n")
    with pytest.raises(FileFormatError, match=r"2 lines and .* 1: line k"):
        aligned_pairs([one, other] * 3)
    table = tmp_path / "t.tsv"
    table.write_text("20010101\t1-2\ta\tb\n20010101\t1-3\ta\n")
    with pytest.raises(FileFormatError, match=r"Line 2 .* has 3 cells, not 4"):
        table_pairs(table)
    pair, empty = Sentence("a b", "c", "1"), Sentence("a", "", "2")
    texts = {0: [pair, empty], 1: [pair], 2: [pair]}
    arrays, counts, _ = translation_arrays(texts, 262)
    assert (counts["train_empty"], counts["train_pairs"]) == (1, 1)
    assert len(arrays["splits"]) == 3
    with pytest.raises(InputError, match=r"No validation pair .* 1 with an empty side"):
        translation_arrays({**texts, 1: [empty]}, 262)
    long = Sentence("abcdefghijklmnopqrstuvwxyz", "y", "3")
    assert translation_arrays({**texts, 0: [pair, long]}, 262, longest=20)[1][
        "train_too_long"
    ] == 1  # fmt: skip
    many = [Sentence(f"w{k}", f"v{k}", str(k // 2)) for k in range(40)]
    cut, _, same = translation_arrays({**texts, 0: many}, 262, tokens=60)
    documents = cut["documents"][cut["splits"] == 0]
    assert 0 < len(documents) < 40
    assert all(np.bincount(documents)[np.unique(documents)] == 2), "whole documents"
    assert same == translation_arrays({**texts, 0: many}, 262)[2]


def test_packs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    pack = translation_excerpt()
    path = tmp_path / "t.pack.xz"
    write_pack(path, {key: pack.header[key] for key in KEYS}, pack.arrays)
    assert read_pack(path).sha256 == pack.sha256
    with pytest.raises(FileFormatError, match="of another kind"):
        Translations(excerpt("nli"), 0, lengths=(64,))
    other = {**pack.header["tokeniser"], "sha256": "0" * 64}
    with pytest.raises(FileFormatError, match="header says 000000000000"):
        Translations(changed(pack, {"tokeniser": other}), 0, lengths=(64,))
    words = {**pack.header["tokeniser"], "specials": {"<unk>": 0, "<eos>": 1}}
    with pytest.raises(FileFormatError, match="another tokeniser"):
        Translations(changed(pack, {"tokeniser": words}), 0, lengths=(64,))
    sources = pack.arrays["sources"].copy()
    sources[0] += 1
    with pytest.raises(FileFormatError, match="do not fit together"):
        Translations(changed(pack, {}, sources=sources), 0, lengths=(64,))
    a, b = pack.arrays["sources"].copy(), pack.arrays["targets"].copy()
    a[5], b[5] = a[5] + b[5], 0
    with pytest.raises(FileFormatError, match="pair 5 is empty"):
        Translations(changed(pack, {}, sources=a, targets=b), 0, lengths=(64,))
    gone = np.where(pack.arrays["splits"] == 1, 0, pack.arrays["splits"]).astype(np.uint8)
    with pytest.raises(FileFormatError, match="no validation pair"):
        Translations(changed(pack, {}, splits=gone), 0, lengths=(64,))


def test_filling_has_no_weight() -> None:
    task = Translations(translation_excerpt(), 0, lengths=(64,))
    batch = task.batch("train", Draw(torch.tensor([FILLING, 0]), 64))
    assert batch.weights[0].sum() == 0
    assert (batch.labels[0] == -100).all()
    assert batch.weights[1].sum() == task.sizes("train")[1][0]
