"""Windows of SQuAD: how many, what their labels say, which of them may answer."""

import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.data.test_pack import HEADER

from everyformer.data.batch import FILLING
from everyformer.data.packs.excerpt import excerpt, vocabulary
from everyformer.data.packs.pack import Pack, new_pack
from everyformer.data.packs.squad import articles, covering, squad_arrays
from everyformer.data.packs.wordpiece import Pieces, read_vocabulary
from everyformer.data.randomness import SPLITS, Split
from everyformer.data.squad.task import Questions
from everyformer.data.squad.windows import cut, windows
from everyformer.errors import FileFormatError, InputError

CPU = torch.device("cpu")
DATA = os.environ.get("EVERYFORMER_DATA")


def bert_windows(tokens: int, most: int, stride: int) -> Iterator[tuple[int, int]]:
    """The loop of google-research/bert, run_squad.py."""
    start = 0
    while start < tokens:
        length = min(tokens - start, most)
        yield start, length
        if start + length == tokens:
            break
        start += min(length, stride)


def bert_has_most_context(spans: list[tuple[int, int]], own: int, place: int) -> bool:
    best, best_score = None, 0.0
    for number, (start, length) in enumerate(spans):
        end = start + length - 1
        if place < start or place > end:
            continue
        score = min(place - start, end - place) + 0.01 * length
        if best is None or score > best_score:
            best, best_score = number, score
    return best == own


@pytest.mark.parametrize("most", [5, 20, 33])
@pytest.mark.parametrize("stride", [1, 8, 20, 50])
def test_windows_are_those_of_bert(most: int, stride: int) -> None:
    for tokens in (1, 4, most, most + 1, 41, 60):
        spans = list(bert_windows(tokens, most, stride))
        found = cut(tokens, most, stride)
        assert found[:, :2].tolist() == [list(span) for span in spans]
        for number, (_, _, low, high) in enumerate(found.tolist()):
            own = [k for k in range(tokens) if bert_has_most_context(spans, number, k)]
            assert own == list(range(low, high))


def test_a_step_is_not_an_overlap() -> None:
    found = windows(np.array([300]), np.array([10]), 213, 128)
    assert found.starts.tolist() == [0, 128]
    assert len(windows(np.array([300]), np.array([10]), 213, 72).starts) == 3
    with pytest.raises(InputError, match="hold no context beside a question of 10"):
        windows(np.array([300]), np.array([10]), 13, 128)


@functools.cache
def questions(ambiguous: str = "keep") -> Questions:
    return Questions(
        excerpt("squad"), 0, length=48, stride=16, lengths=(40, 48), ambiguous=ambiguous
    )


def read(task: Questions, split: Split) -> dict[str, np.ndarray]:
    """Every window of a split once, by number."""
    found: dict[int, Any] = {}
    for draw in task.evaluation(split, 64, 0, 1, CPU):
        batch = task.batch(split, draw)
        assert batch.places is not None
        assert torch.equal(batch.weights == 0, draw.numbers == FILLING)
        for number, *row in zip(
            draw.numbers.tolist(), *batch[:2], batch.places, strict=True
        ):
            if number != FILLING:
                assert number not in found
                found[number] = [column.numpy() for column in row]
    assert sorted(found) == list(range(len(task.windows(split).questions)))
    rows = [found[number] for number in range(len(found))]
    return {
        "start": np.array([row[1][0] for row in rows]),
        "end": np.array([row[1][1] for row in rows]),
        "tokens": np.array([row[0][:40] for row in rows]),
        "begins": np.array([row[2].sum() for row in rows]),
    }


@pytest.mark.parametrize("split", ["validation", "test"])
def test_labels_give_back_the_answers(split: Split) -> None:
    """Where a window holds the answer; the others say [CLS], and a wrong window loses."""
    task = questions()
    found = read(task, split)
    inside = found["start"] > 0
    assert 0 < inside.sum() < len(inside), "both kinds of windows are there"
    assert (found["end"][~inside] == 0).all()
    asked = task.questions(split)
    answered = np.isin(np.arange(len(asked)), task.windows(split).questions[inside])
    assert answered.all()
    numbers = np.arange(len(inside))
    scores = {"score": inside.astype(float), "start": found["start"], "end": found["end"]}
    judged = task.judged(split, scores, numbers)
    assert judged["f1"].tolist() == judged["exact"].tolist() == [1] * len(asked)
    mixed = np.random.default_rng(0).permutation(numbers)
    again = task.judged(split, {k: v[mixed] for k, v in scores.items()}, mixed)
    assert again["f1"].tolist() == judged["f1"].tolist()
    lost = task.judged(split, {**scores, "score": -scores["score"]}, numbers)
    assert lost["f1"].mean() < 1
    # Spans outside the context, or backwards, and windows that are missing: no answer.
    for bad in ({"start": scores["start"] * 0}, {"end": scores["start"] - 1}):
        assert task.judged(split, {**scores, **bad}, numbers)["exact"].sum() == 0
    none = {k: v[:0] for k, v in scores.items()}
    assert task.judged(split, none, numbers[:0])["exact"].tolist() == [0] * len(asked)
    clusters = task.clusters(split)
    assert len(clusters) == len(asked)
    assert len(set(clusters.tolist())) == len(asked) // 4


def test_every_token_may_begin_an_answer_in_one_window() -> None:
    task = questions()
    begins = read(task, "test")["begins"]
    own = task.windows("test")
    total = np.bincount(own.questions, weights=begins)
    arrays = task.pack.arrays
    of_context = arrays["question_contexts"][task.questions("test")]
    assert total.tolist() == arrays["context_lengths"][of_context].tolist()


def test_training_answers_and_ambiguous_ones() -> None:
    keep, drop = questions(), questions("drop")
    assert len(keep.questions("train")) == 840
    assert len(drop.questions("train")) == 630
    assert len(drop.questions("test")) == len(keep.questions("test")) == 96
    assert drop.updates(16, 2) == 2 * drop.updates(16, 1) < keep.updates(16, 2)
    assert drop.describe() != keep.describe()
    found = read(drop, "train")
    inside = np.flatnonzero((found["start"] > 0) & (found["end"] < 40))
    pieces = vocabulary().vocabulary
    said = {
        " ".join(pieces[k] for k in found["tokens"][row][start : end + 1])
        for row, start, end in zip(
            inside, found["start"][inside], found["end"][inside], strict=True
        )
    }
    assert {"northland", "the high valley", "norric"} <= said
    assert not said & {"barley", "flax"}, "said twice, so dropped"


def test_an_answer_that_begins_inside_a_piece() -> None:
    pieces = Pieces([1, 2, 3, 4], [(0, 4), (4, 7), (8, 12), (13, 14)])
    assert covering(pieces, 0, 4) == (0, 0)
    assert covering(pieces, 2, 5) == (0, 1)
    assert covering(pieces, 9, 14) == (2, 3)
    assert covering(pieces, 7, 9) == (2, 2), "the space before belongs to nothing"
    with pytest.raises(ValueError, match="no token lies in the characters 7 to 7"):
        covering(pieces, 7, 8)


def test_offsets_are_of_the_text_as_it_was_given() -> None:
    """Accents, capitals and odd spaces change the tokens, not where they came from."""
    text = "Café \u00a0É–Z [MASK] x"
    (found,) = vocabulary().pieces([text])
    spans = [text[start:stop] for start, stop in found.offsets]
    assert "".join(spans) == text.replace(" ", "").replace("\u00a0", "")
    assert vocabulary().vocabulary.index("[MASK]") not in found.ids, "text is only text"


def test_files_that_are_no_squad(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    answer = {"text": "cat", "answer_start": 1}
    paragraph = {"context": "a cat", "qas": [{"question": "?", "answers": [answer]}]}
    wrong = {"data": [{"title": "t", "paragraphs": [paragraph]}]}
    for text in ("", "[]", '{"data": 1}', '{"data": [{}]}', json.dumps(wrong)):
        path.write_text(text)
        with pytest.raises(FileFormatError, match="is not a file of SQuAD"):
            articles(path)


def changed(**arrays: np.ndarray) -> Pack:
    good = excerpt("squad")
    header = {**HEADER, "tokeniser": good.header["tokeniser"]}
    new = {k: v.astype(good.arrays[k].dtype) for k, v in arrays.items()}
    return new_pack(header, {**good.arrays, **new})


def test_arrays_that_do_not_fit_together() -> None:
    arrays = excerpt("squad").arrays
    for bad in (
        {"question_contexts": arrays["question_contexts"] + 1},
        {"question_contexts": -arrays["question_contexts"]},
        {"answer_last": arrays["answer_last"] + 60},
        {"answer_first": arrays["answer_last"] + 1},
        {"context_lengths": arrays["context_lengths"][1:]},
        {"gaps": arrays["gaps"][1:]},
        {"text": arrays["text"][1:]},
        {"occurrences": arrays["occurrences"][1:]},
    ):
        with pytest.raises(FileFormatError, match="do not fit together"):
            Questions(changed(**bad), 0)
    with pytest.raises(InputError, match="give 'drop' or 'keep'"):
        Questions(excerpt("squad"), 0, lengths=(192, 200))


@pytest.mark.skipif(DATA is None, reason="the real SQuAD is not in the repository")
def test_the_real_windows_and_answers() -> None:
    """88,641 and 10,833 windows at 384 / 128, as BERT has them; answers come back."""
    folder = Path(str(DATA))
    wordpiece = read_vocabulary(folder / "bert-vocab/vocab.txt")
    train, dev = (folder / f"squad/{part}-v1.1.json" for part in ("train", "dev"))
    arrays, counts = squad_arrays(train, dev, wordpiece)
    pack = new_pack({**HEADER, "tokeniser": wordpiece.describe()}, arrays)
    task = Questions(pack, 0, length=384, lengths=(384,), ambiguous="keep")
    sizes = {split: len(task.windows(split).questions) for split in SPLITS}
    assert sizes["train"] + sizes["validation"] == 88_641
    assert sizes["test"] == 10_833
    assert counts["test_questions"] == 10_570
    exact = inside = clear = 0
    for article in articles(train):
        for paragraph in article["paragraphs"]:
            (pieces,) = wordpiece.pieces([paragraph["context"]])
            for question in paragraph["qas"]:
                (answer,) = question["answers"]
                start, text = answer["answer_start"], answer["text"]
                first, last = covering(pieces, start, start + len(text))
                low, high = pieces.offsets[first][0], pieces.offsets[last][1]
                said = paragraph["context"][low:high]
                assert text.strip() in said
                clear += "occurrences" not in answer
                exact += said == text.strip() and "occurrences" not in answer
                inside += said != text.strip()
    assert clear == 87_599 - 9_438
    assert inside == 174
    assert exact >= clear - 174
