"""Trained at one length, tested at others."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from everyformer.data.batch import FILLING, Draw
from everyformer.data.task import IGNORED
from everyformer.errors import TrainingError
from everyformer.experiments.cell import conditions_hash
from everyformer.experiments.positions_picture import load_positions, positions_path
from everyformer.experiments.reproduce import reproduce
from everyformer.experiments.urpe_lengths import URPE_LENGTHS
from everyformer.experiments.urpe_lengths.cells import SCALES, cells
from everyformer.experiments.urpe_lengths.models import ARMS, encoder_of
from everyformer.experiments.urpe_lengths.overview import SAID, kept_lengths
from everyformer.experiments.urpe_lengths.tasks import NextByte, OffsetCopy
from everyformer.experiments.urpe_lengths.texts import excerpt_texts, texts_of
from everyformer.layers.models.encoder_config import EncoderConfig

CPU = torch.device("cpu")


def copying(**more: int) -> OffsetCopy:
    return OffsetCopy(
        seq_len=6, lengths=(6, 12), seed=0, tokens=9, **{"offset": 2, "evaluated": 4} | more
    )


def reading() -> NextByte:
    text = np.arange(100, dtype=np.uint8)
    texts: dict[str, np.ndarray] = dict.fromkeys(("train", "validation", "test"), text)
    return NextByte(
        seq_len=6, lengths=(6, 12), seed=0, name="counts", texts=texts, evaluated=4
    )


def test_only_the_end_of_a_longer_sequence_is_scored() -> None:
    task = copying()
    found = task.batch("test", Draw(torch.tensor([5, FILLING]), 12))
    assert found.weights.tolist() == [[0.0] * 8 + [1.0] * 4, [0.0] * 12]
    assert torch.equal(found.labels[0, 8:], found.tokens[0, 6:10])
    assert (found.labels[0, :8] == IGNORED).all()
    short = task.batch("train", Draw(torch.tensor([5]), 6))
    assert short.weights[0].tolist() == [0.0] * 2 + [1.0] * 4


def test_the_same_bytes_are_scored_with_more_before_them() -> None:
    task = reading()
    short = task.batch("test", Draw(torch.tensor([1, 3]), 6))
    long = task.batch("test", Draw(torch.tensor([4 + 1, 4 + 3]), 12))
    assert torch.equal(short.labels, long.labels[:, 6:])
    assert torch.equal(short.tokens, long.tokens[:, 6:])
    assert torch.equal(short.labels, short.tokens + 1), "the next byte"
    assert (long.labels[:, :6] == IGNORED).all()


def test_every_length_is_drawn_once_and_named() -> None:
    task = copying()
    draws = [d for part in (0, 1) for d in task.evaluation("test", 2, part, 2, CPU)]
    found = sorted((int(k), d.length) for d in draws for k in d.numbers if k != FILLING)
    assert found == [(k, 6 if k < 4 else 12) for k in range(8)]
    rows = np.arange(8.0)
    judged = task.judged("test", {"accuracy": rows}, np.arange(8))
    assert judged["accuracy"].tolist() == judged["accuracy@6"].tolist() == [0, 1, 2, 3]
    assert judged["accuracy@12"].tolist() == [4, 5, 6, 7]
    assert list(task.judged("validation", {"accuracy": rows}, rows)) == ["accuracy"]


@pytest.mark.parametrize("arm", list(ARMS))
def test_arms_are_causal_and_run_at_any_length(arm: str) -> None:
    config = EncoderConfig(9, 16, dim=8, layers=2, heads=2, ffn=8, head="untied")
    encoder = encoder_of(config, arm, 4).eval()
    tokens = torch.randint(0, 9, (1, 16))
    out = encoder(tokens)
    tokens[0, 9] += 1
    again = encoder(tokens % 9)
    assert torch.allclose(out[0, :9], again[0, :9], atol=1e-6)
    assert (out[0, 9:] - again[0, 9:]).abs().max() > 1e-4


def test_arms_share_their_conditions_and_results_name_them() -> None:
    found = cells("small", [0, 1], {})
    assert len(found) == 2 * 2 * len(ARMS)
    hashes = {c.labels["task"]: set[str]() for c in found}
    for cell in found:
        hashes[str(cell.labels["task"])].add(conditions_hash(cell.settings))
    assert {len(own) for own in hashes.values()} == {1}, "equal but for arm and seed"
    assert len({c.identity for c in found}) == len(found)
    assert SCALES["small"].lengths == SCALES["reduced"].lengths == (32, 64, 128, 256)


def test_a_smoke_run_is_kept_and_drawn(tmp_path: Path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("to be or not to be, that is the question. " * 60)
    path = reproduce(
        URPE_LENGTHS,
        "smoke",
        out=tmp_path,
        runs=tmp_path / "runs",
        data=text,
        only=["copy/ape/0", "text/urpe-bucketed/0"],
    )
    results = json.loads(path.read_text())["results"]
    assert [r["labels"]["method"] for r in results] == ["ape", "urpe-bucketed"]
    assert (
        results[1]["value_sampled"] == results[1]["more"]["test"]["nats@16"]["mean_sampled"]
    )
    assert results[1]["settings"]["task"]["text"].startswith("mine.txt ")
    assert list(load_positions(positions_path(path))["text/urpe-bucketed/0"]) == ["B", "C"]
    shown = path.with_suffix(".md").read_text()
    assert "Claims are not judged at size smoke" in shown
    assert path.with_suffix(".png").stat().st_size > 5_000


def test_the_overview_says_what_was_kept() -> None:
    def result(task: str, near: float, far: float) -> dict[str, object]:
        metric = "accuracy" if task == "copy" else "nats"
        test = {metric: {"mean_sampled": near}, f"{metric}@256": {"mean_sampled": far}}
        labels = {"task": task, "method": "ape", "seed": 0}
        return {"labels": labels, "complete": True, "more": {"test": test}}

    told = kept_lengths(
        [result("copy", 1.0, 0.06), result("text", 0.4, 0.3)], ("ape", "t5")
    )
    assert told == "ape copy 1.00 to 0.06 (lost), text 0.40 to 0.30 (kept)"
    assert kept_lengths([], ("ape",)) == "not run"
    assert [*SAID.values()] == [
        ("No", "Yes", "Yes"),
        ("No", "Yes", "Yes"),
        ("Yes", "No", "Yes"),
    ]


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="urpe-lengths has no paper size"):
        cells("paper", [0], {})
    with pytest.raises(TrainingError, match="is not a file"):
        texts_of(tmp_path)
    with pytest.raises(TrainingError, match="offset=6 leaves nothing to copy in 6 tokens"):
        copying(offset=6)
    with pytest.raises(TrainingError, match=r"lengths=\(12, 6\) must begin with seq_len=6"):
        OffsetCopy(seq_len=6, lengths=(12, 6), seed=0, offset=2, tokens=9)
    short = tmp_path / "short.txt"
    short.write_text("too short")
    with pytest.raises(TrainingError, match=r"validation has 0 bytes.*514 are needed"):
        cells("small", [0], {}, short)
    name, texts = excerpt_texts()
    assert name.startswith("excerpt ")
    assert min(len(text) for text in texts.values()) > 5_000
