"""Packed windows for training; documents one by one for evaluation, every token once."""

import numpy as np
import pytest
import torch

from everyformer.data.batch import Draw
from everyformer.data.documents import BLOCK, Documents, windows_of
from everyformer.data.packs.excerpt import excerpt, words_excerpt
from everyformer.data.packs.pack import Pack, new_pack
from everyformer.data.task import IGNORED
from everyformer.errors import FileFormatError, InputError

CPU = torch.device("cpu")
READINGS = {"nats": 8, "without_context": 0}


def made(train: list[int], held_out: list[int]) -> Pack:
    """A pack whose documents have these lengths, and whose tokens are their own numbers."""
    tokeniser = excerpt("enwiki-wp").header["tokeniser"]
    header = {"name": "made", "licence": "none", "sources": {}, "counts": {}}
    arrays: dict[str, np.ndarray] = {}
    for split, lengths in (("train", train), ("validation", held_out), ("test", held_out)):
        sizes = np.array(lengths)
        tokens = np.arange(sizes.sum()) % 100 + 10
        arrays[split] = tokens.astype(np.uint16)
        arrays[f"{split}_articles"] = (np.cumsum(sizes) - sizes).astype(np.int32)
    return new_pack({**header, "tokeniser": tokeniser | {"vocabulary": 200}}, arrays)


def test_training_windows_are_the_packed_text() -> None:
    pack = made([30, 50, 41], [5])
    task = Documents(pack, 16, 3, READINGS)
    sep = pack.specials["[SEP]"]
    whole = np.insert(pack.arrays["train"], pack.arrays["train_articles"], sep)
    assert (whole == sep).sum() == 3
    count = task.epoch
    assert count == 124 // 16 - 1
    text, places = whole.tolist(), set[int]()
    for epoch in range(2):
        batch = task.batch("train", task.draw(epoch, count, 0, 1, CPU))
        assert torch.equal(batch.tokens[:, 1:], batch.labels[:, :-1])
        assert bool((batch.weights == 1).all())
        starts = [
            next(k for k in range(len(text)) if text[k : k + 16] == row)
            for row in batch.tokens.tolist()
        ]
        assert len({start // 16 for start in starts}) == count, "every window once"
        assert len({start % 16 for start in starts}) == 1
        places |= {start % 16 for start in starts}
    assert len(places) == 2, "another beginning in another epoch"


def test_every_token_is_scored_once_with_the_context_that_is_said() -> None:
    lengths = np.array([1, 16, 17, 24, 25, 100])
    for context in (0, 8, 15):
        found = windows_of(lengths, 16, context)
        seen = [
            (int(d), int(o + k))
            for d, o, a, b in zip(*found, strict=True)
            for k in range(int(a), int(b))
        ]
        assert seen == [(d, k) for d, n in enumerate(lengths) for k in range(n)]
        later = found.offset > 0
        assert (found.first[later] == context).all()
        assert (found.first[~later] == 0).all()


def test_an_evaluation_gives_nats_of_blocks_by_document() -> None:
    """A model whose loss of a token is the token: means and clusters follow."""
    pack = made([300], [100, 3, 64])
    task = Documents(pack, 16, 0, READINGS)
    rows: list[torch.Tensor] = []
    for draw in task.evaluation("test", 4, 0, 1, CPU):
        batch = task.batch("test", draw)
        real = batch.labels != IGNORED
        assert torch.equal(real, batch.weights == 1)
        rows.append((batch.labels * batch.weights)[draw.numbers >= 0])
        first = batch.tokens[:, 0] == pack.specials["[SEP]"]
        assert bool((batch.weights[first, 0] == 1).all())
    losses = torch.cat(rows).numpy()
    found = task.judged("test", {"losses": losses}, np.arange(len(losses)))
    assert {*found} == {*READINGS}
    for blocks in found.values():
        assert len(blocks) == 4
        assert blocks.mean() == pytest.approx(pack.arrays["test"].mean())
        first = pack.arrays["test"][:BLOCK].sum() * 4 / 167
        assert blocks[0] == pytest.approx(first)
    assert task.clusters("test").tolist() == [0, 0, 1, 2]
    assert {*task.judged("validation", {"losses": losses[: _windows(task)]}, np.arange(1))}
    assert Documents(pack, 16, 0, READINGS, most=2).tokens("test") == 103


def _windows(task: Documents) -> int:
    return len(task.windows["validation"].document)


def test_no_label_is_seen_by_its_own_window() -> None:
    """The token at place k + 1 is the label of place k, and filling counts nothing."""
    task = Documents(made([300], [40]), 16, 0, READINGS)
    batch = task.batch("test", Draw(torch.tensor([1, -1]), 16))
    shown = batch.labels[0] != IGNORED
    assert shown.tolist() == [False] * 8 + [True] * 8
    assert torch.equal(batch.tokens[0, 9:], batch.labels[0, 8:15])
    assert float(batch.weights[1].sum()) == 0


def test_packs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(FileFormatError, match=r"no \[SEP\]"):
        Documents(words_excerpt(), 16, 0, READINGS)
    with pytest.raises(FileFormatError, match="has no arrays"):
        Documents(excerpt("nli"), 16, 0, READINGS)
    with pytest.raises(InputError, match=r"leave no window of 512.*a context of 600"):
        Documents(made([300], [40]), 512, 0, {"nats": 600})
    with pytest.raises(InputError, match="most=0"):
        Documents(made([300], [40]), 16, 0, READINGS, most=0)
