"""GLUE: metrics as others compute them, files to packs, one text and two."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from everyformer.data.batch import Draw
from everyformer.data.glue import Glue
from everyformer.data.glue_metrics import (
    METRICS,
    accuracy,
    f1,
    matthews,
    pearson,
    with_error,
)
from everyformer.data.packs.excerpt import excerpt
from everyformer.data.packs.glue import TABLES, rows
from everyformer.data.packs.pack import new_pack
from everyformer.errors import FileFormatError, InputError


def test_metrics_are_those_of_sklearn_and_scipy() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(2)
    for share in (0.1, 0.5, 0.9):
        said = (generator.random(200) < share).astype(int)
        true = (generator.random(200) < 0.7).astype(int)
        assert matthews(said, true) == pytest.approx(metrics.matthews_corrcoef(true, said))
        assert f1(said, true) == pytest.approx(metrics.f1_score(true, said))
        assert accuracy(said, true) == metrics.accuracy_score(true, said)
    x, y = generator.normal(size=(2, 100))
    assert pearson(x, x + y) == pytest.approx(stats.pearsonr(x, x + y).statistic)
    found, error = with_error("sts-b", x, x + 3 * y)
    assert found == pearson(x, x + 3 * y)
    assert error == pytest.approx(0.1, abs=0.04), "about (1 - r^2) / sqrt(n)"


def test_metrics_without_an_answer_are_0() -> None:
    """One class alone, no positive, a constant prediction: GLUE's scripts say 0."""
    none, some = np.zeros(4, int), np.array([0, 1, 0, 1])
    assert matthews(none, some) == 0.0
    assert f1(none, none) == 0.0
    assert pearson(np.ones(4), some) == 0.0
    assert {*METRICS} == {*TABLES}


def test_lines_of_the_files(tmp_path: Path) -> None:
    given = {
        "cola": ("gj04\t0\t*\tThey drank the pub.\n", ("They drank the pub.", "", 0)),
        "sst-2": ("sentence\tlabel\ngood \t1\n", ("good ", "", 1)),
        "mrpc": ('\ufeffQuality\ta\tb\tc\td\n1\t1\t2\tA "b".\tC\r\n', ('A "b".', "C", 1)),
        "rte": ("index\ta\tb\tlabel\n0\tA\tB\tnot_entailment\n", ("A", "B", 0)),
        "sts-b": ("g\tf\ty\t1\t3.800\tA\tB\tsource\n", ("A", "B", 3800)),
    }
    for task, (text, wanted) in given.items():
        path = tmp_path / task
        path.write_text(text, encoding="utf-8")
        assert list(rows(path, TABLES[task])) == [wanted]
    for task, text in (
        ("cola", "gj04\t2\t\tx\n"), ("sts-b", "g\tf\ty\t1\t5.1\tA\tB\n"),
        ("sts-b", "g\tf\ty\t1\tnan\tA\tB\n"), ("mrpc", "h\n1\t2\n"),
    ):  # fmt: skip
        path = tmp_path / "wrong"
        path.write_text(text)
        with pytest.raises(FileFormatError, match=r"Line [12] of .* it is not an example"):
            list(rows(path, TABLES[task]))


def test_one_text_has_one_separator_and_two_have_two() -> None:
    pack = excerpt("glue")
    special = pack.specials
    for task, separators in (("sst-2", 1), ("rte", 2)):
        glue = Glue(pack, task, 0, lengths=(16, 32))
        for draw in glue.evaluation("test", 8, 0, 1, torch.device("cpu")):
            batch = glue.batch("test", draw)
            assert batch.padding is not None
            assert batch.segments is not None
            real = draw.numbers >= 0
            sizes = (~batch.padding).sum(1)[real]
            wanted = torch.from_numpy(glue.sizes["test"][draw.numbers[real]])
            assert torch.equal(sizes, wanted)
            assert bool((batch.tokens[:, 0] == special["[CLS]"]).all())
            count = (batch.tokens == special["[SEP]"]).sum(1)[real]
            assert bool((count == separators).all())
            assert torch.equal(batch.tokens == special["[PAD]"], batch.padding)
            assert batch.segments.max() == separators - 1
            assert batch.weights.tolist() == real.float().tolist()


def test_labels_and_what_is_judged() -> None:
    pack = excerpt("glue")
    cpu, score = torch.device("cpu"), Glue(pack, "sts-b", 0)
    batch = score.batch("test", Draw(torch.arange(4, device=cpu), 32))
    assert batch.labels.dtype == torch.float32
    assert {*batch.labels.tolist()} == {-1.0, 1.0}
    cola = Glue(pack, "cola", 0)
    labels = cola.labels["test"]
    right = np.arange(len(labels)) % 3 > 0
    found = cola.judged("test", {"accuracy": right.astype(float)}, np.arange(len(labels)))
    assert accuracy(found["prediction"], found["label"]) == right.mean()


def test_what_is_not_glue_is_refused() -> None:
    pack = excerpt("glue")
    with pytest.raises(InputError, match="'qnli' is not a task"):
        Glue(pack, "qnli", 0)
    with pytest.raises(FileFormatError, match="has no arrays"):
        Glue(excerpt("nli"), "cola", 0)
    keys = ("name", "licence", "tokeniser", "sources", "counts")
    header: dict[str, Any] = {key: pack.header[key] for key in keys}
    wrong = pack.arrays | {"cola_labels": pack.arrays["cola_labels"] + np.uint16(1)}
    with pytest.raises(FileFormatError, match="the largest label is 2"):
        Glue(new_pack(header, wrong), "cola", 0)
