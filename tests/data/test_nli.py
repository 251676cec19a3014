"""Pairs: what a sequence holds, who is held out, what the hypothesis alone shows."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.data.test_pack import HEADER

from everyformer.data.batch import Draw
from everyformer.data.nli import Pairs, shortened
from everyformer.data.packs.excerpt import excerpt, vocabulary
from everyformer.data.packs.nli import LEFT_OUT, held_out, rows
from everyformer.data.packs.pack import new_pack
from everyformer.errors import FileFormatError

CPU = torch.device("cpu")


def words(tokens: torch.Tensor) -> str:
    pieces = [vocabulary().vocabulary[number] for number in tokens.tolist()]
    return " ".join(pieces).replace(" ##", "")


def test_a_pair_as_a_sequence() -> None:
    task = Pairs(excerpt("nli"), 0, held_out=True)
    batch = task.batch("test", Draw(torch.arange(4), 64))
    text = words(batch.tokens[0])
    assert text.startswith("[CLS] ")
    assert text.count("[SEP]") == 2
    first, second, rest = text.split(" [SEP]")
    assert " is a " in first
    assert set(rest.split()) <= {"[PAD]"}
    assert batch.segments is not None
    assert batch.padding is not None
    shown = words(batch.tokens[0][(batch.segments[0] == 1) & ~batch.padding[0]])
    assert shown == f"{second.strip()} [SEP]"
    assert (batch.tokens[batch.padding] == 0).all()
    assert batch.labels.shape == batch.weights.shape == (4,)
    classes = [int(one) for one in batch.labels[:3]]
    assert sorted(classes) == [0, 1, 2], "a town has one hypothesis of each class"


def test_longer_pairs_lose_the_end_of_the_longer_text() -> None:
    task = Pairs(excerpt("nli"), 0, held_out=True, lengths=(24,))
    batch = task.batch("test", Draw(torch.arange(8), 24))
    assert batch.padding is not None
    assert not batch.padding.any()
    assert ((batch.tokens == 3).sum(1) == 2).all()
    assert (batch.tokens[:, -1] == 3).all()


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 30))
def test_cutting_as_bert_does(first: int, second: int, most: int) -> None:
    a, b = first, second
    while a + b > most:
        if a > b:
            a -= 1
        else:
            b -= 1
    found = shortened(np.array([first]), np.array([second]), most)
    assert (found[0].item(), found[1].item()) == (a, b)


def test_the_hypothesis_alone() -> None:
    """Neither the words nor the length of the premise can be seen."""
    pack = excerpt("nli")
    task = Pairs(pack, 0, held_out=True, premise_masked=True)
    batch = task.batch("train", task.draw(0, 16, 0, 1, CPU))
    assert (batch.tokens[:, 1] == pack.specials["[MASK]"]).all()
    assert (batch.tokens[:, 2] == pack.specials["[SEP]"]).all()
    assert task.describe() != Pairs(pack, 0, held_out=True).describe()


def test_premises_that_are_held_out_are_not_trained_on() -> None:
    premises = [f"p{k // 3}" for k in range(300)]
    splits = held_out(premises, 50)
    assert (splits == 1).sum() == 50
    assert (splits == LEFT_OUT).sum() == 1, "50 = 16 premises of three and two of the next"
    trained = {premises[k] for k in np.flatnonzero(splits == 0)}
    assert not trained & {premises[k] for k in np.flatnonzero(splits == 1)}
    pack = excerpt("nli")
    assert Pairs(pack, 0, held_out=True).updates(540, 2) <= 6
    sizes = [Pairs(pack, 0, held_out=out).updates(1, 1) for out in (True, False)]
    assert sizes == [540, 600]
    assert Pairs(pack, 0, held_out=True).clusters("validation").tolist() == list(range(60))


def test_tables_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("premise\thypothesis\n")
    with pytest.raises(FileFormatError, match="not with a heading"):
        list(rows(path))
    good = 'x\tsentence1\tsentence2\tgold_label\n1\t"a\tb"\tneutral\n'
    path.write_text(good)
    assert list(rows(path)) == [('"a', 'b"', 1)], "quotes are text"
    for bad in ("1\ta\tb\t-\n", "1\ta\tneutral\n"):
        path.write_text(good + bad)
        with pytest.raises(FileFormatError, match=r"Line 3 of .* has \d cells"):
            list(rows(path))


def test_arrays_that_do_not_fit_together() -> None:
    arrays = dict(excerpt("nli").arrays)
    for name, array in (
        ("premises", arrays["premises"][1:]),
        ("labels", arrays["labels"] + 1),
    ):
        pack = new_pack({**HEADER, "tokeniser": excerpt("nli").header["tokeniser"]},
                        {**arrays, name: array.astype(arrays[name].dtype)})  # fmt: skip
        with pytest.raises(FileFormatError, match="do not fit together"):
            Pairs(pack, 0, held_out=True)
