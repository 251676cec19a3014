"""Streams of text, and a memory that goes on from update to update and over a kill."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from everyformer.data.batch import FILLING, Draw
from everyformer.data.packs.excerpt import excerpt, words_excerpt
from everyformer.data.packs.pack import Pack, new_pack
from everyformer.data.streams import BLOCK, Reading, Streams
from everyformer.errors import FileFormatError, InputError, TrainingError
from everyformer.layers.models.transformer_xl import TransformerXLConfig, TransformerXLModel
from everyformer.train.config import TrainConfig
from everyformer.train.evaluation import scores_of
from everyformer.train.loop import train
from everyformer.train.objectives.next_word import NextWord
from everyformer.train.processes import accelerator
from everyformer.train.schedule import learning_rate

CPU = torch.device("cpu")
READINGS = (Reading("nats", 8, 8), Reading("long", 40, 24, 15, same_length=True))
CONFIG = TrainConfig(
    steps=10, batch=4, lr=1e-2, warmup=2, decay="cosine", clip=0.25, log_every=1,
    checkpoint_every=5,
)  # fmt: skip


def task(batch: int = 4, most: int | None = 300) -> Streams:
    return Streams(words_excerpt(), batch, 8, 3, READINGS, most)


def model(gain: str = "shared", **more: Any) -> TransformerXLConfig:
    words = words_excerpt().vocabulary
    return TransformerXLConfig(
        vocab_size=words, max_len=16, dim=8, layers=2, heads=2, head_dim=4, ffn=16,
        dropout=0.1, gain=gain, **more,
    )  # fmt: skip


def objective(gain: str = "shared", **more: Any) -> NextWord:
    stack = TransformerXLModel(model(gain, **more))
    return NextWord(stack, streams=4, places=8, readings=READINGS)


def test_updates_read_the_text_once_in_a_pass() -> None:
    own = task()
    text = own.pack.arrays["train"]
    begun: set[int] = set()
    for turn in range(2):
        seen: list[np.ndarray] = []
        for step in range(turn * own.updates, (turn + 1) * own.updates):
            batch: Any = own.batch("train", own.draw(step, 4, 0, 1, CPU))
            assert batch.fresh.tolist() == [step % own.updates == 0] * 4
            assert batch.streams.tolist() == [0, 1, 2, 3]
            assert torch.equal(batch.tokens[:, 1:], batch.labels[:, :-1])
            seen.append(batch.tokens.numpy())
        streams = np.concatenate(seen, 1)
        length = len(text) // 4
        ring = np.concatenate([text, text])
        (start,) = [
            s
            for s in np.flatnonzero(text == streams[0, 0])
            if np.array_equal(ring[s : s + streams.shape[1]], streams[0])
        ]
        begun.add(int(start))
        for stream in range(4):
            first = (start + stream * length) % len(text)
            wanted = ring[first : first + streams.shape[1]]
            np.testing.assert_array_equal(streams[stream], wanted)
    assert len(begun) == 2


def test_parts_share_the_streams() -> None:
    own = task()
    whole = own.batch("train", own.draw(7, 4, 0, 1, CPU))
    parts = [own.batch("train", own.draw(7, 4, part, 2, CPU)) for part in range(2)]
    assert torch.equal(whole.tokens, torch.cat([part.tokens for part in parts]))
    with pytest.raises(InputError, match="8 sequences cannot go on 4 streams"):
        own.draw(0, 8, 0, 1, CPU)


def test_an_evaluation_counts_every_token_once() -> None:
    own = task(most=None)
    count = len(own.pack.arrays["test"])
    eos = own.pack.specials["<eos>"]
    for reading in READINGS:
        draws = [
            d for d in own.evaluation("test", 1, 0, 1, CPU) if d.length == reading.length
        ]
        batches = [own.batch("test", draw) for draw in draws]
        labels = torch.cat([b.labels[b.weights > 0] for b in batches])
        np.testing.assert_array_equal(labels.numpy(), own.pack.arrays["test"])
        tokens = torch.cat([b.tokens[b.weights > 0] for b in batches])
        assert tokens[0] == eos
        assert torch.equal(tokens[1:], labels[:-1])
        assert [bool(b.fresh) for b in batches] == [True] + [False] * (len(batches) - 1)
    assert {d.length for d in own.evaluation("validation", 1, 0, 1, CPU)} == {8}
    idle = own.batch("test", Draw(torch.tensor([FILLING]), 8))
    assert float(idle.weights.sum()) == 0.0
    assert all(int(d.numbers[0]) == FILLING for d in own.evaluation("test", 1, 1, 2, CPU))
    assert len(own.clusters("test")) == -(-count // BLOCK)


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary() -> None:
    own = task()
    told: Any = objective()
    torch.nn.init.zeros_(told.encoder.words.table)
    found = scores_of(own, "test", told.eval().scores, accelerator(), 1)
    assert set(found) == {"nats", "long"}
    for rows in found.values():
        assert float(np.exp(rows.mean())) == pytest.approx(own.pack.vocabulary, rel=1e-6)
    assert own.tokens("test") == 300
    assert len(found["nats"]) == -(-300 // BLOCK)


def test_scoring_in_segments_is_scoring_at_once() -> None:
    told = objective().double().eval()
    with torch.no_grad():
        for parameter in told.encoder.parameters():
            parameter += 0.3 * torch.randn(parameter.shape).double()
    same = [replace(READINGS[1], length=length) for length in (7, 40, 300)]
    means: list[np.ndarray] = []
    for reading in same:
        own = Streams(words_excerpt(), 4, 8, 3, (reading,), 300)
        again = NextWord(told.encoder, streams=4, places=8, readings=(reading,)).eval()
        means.append(scores_of(own, "test", again.scores, accelerator(), 1)["long"])
    np.testing.assert_allclose(means[1], means[0], rtol=1e-12)
    np.testing.assert_allclose(means[2], means[0], rtol=1e-12)


def test_memory_is_in_the_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    """Ten updates are five, a checkpoint, and five; with dropout and a new pass."""
    short = Streams(_cut(words_excerpt(), 200), 4, 8, 3, READINGS, 100)
    assert 5 < short.updates < 10
    config = replace(CONFIG, evaluate_every=5)
    whole = train(objective, short, config, folder=tmp_path / "whole")
    over = time.monotonic()
    begun = train(objective, short, config, folder=tmp_path / "cut", deadline=over)
    assert (begun.steps, begun.ended) == (5, "deadline")
    stored = torch.load(tmp_path / "cut" / "checkpoint.pt", weights_only=True)
    memory = stored["model"]["_extra_state"]
    assert stored["step"] == 5
    assert memory["states"].shape == (2, 4, 8, 8)
    assert memory["filled"].tolist() == [8] * 4
    again = train(objective, short, config, folder=tmp_path / "cut", resume=True)
    assert again.curve == whole.curve
    for name, rows in whole.scores.items():
        np.testing.assert_array_equal(again.scores[name], rows)
    with safe_open(tmp_path / "cut" / "encoder.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(dict(objective().encoder.named_parameters()))


def test_accumulated_parts_are_one_update() -> None:
    config = replace(CONFIG, steps=6, checkpoint_every=0)

    def still() -> NextWord:
        stack = TransformerXLModel(replace(model(), dropout=0.0))
        return NextWord(stack, streams=4, places=8, readings=READINGS)

    whole = train(still, task(), config)
    parts = train(still, task(), replace(config, accumulation=2))
    for one, two in zip(whole.curve, parts.curve, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)


def test_the_model_learns_and_its_memory_helps() -> None:
    config = replace(CONFIG, steps=150, lr=2e-2, checkpoint_every=0, log_every=50)
    outcome = train(objective, task(), config)
    assert outcome.test["nats"].mean_sampled < 4.0
    assert {"nats", "long"} == set(outcome.test)
    assert list(outcome.positions) == ["C"]


def test_rates_of_a_cosine() -> None:
    """Of the paper: 2.5e-4 at once, 0 after 200,000; of the reduced size: 500 to 5e-4."""
    paper = TrainConfig(steps=200_000, batch=60, lr=2.5e-4, decay="cosine")
    at = {0: 2.5e-4, 50_000: 2.133883e-4, 100_000: 1.25e-4, 199_999: 1.542e-14}
    for step, rate in at.items():
        assert learning_rate(paper, step) == pytest.approx(rate, rel=1e-3)
    reduced = TrainConfig(steps=8000, batch=64, lr=5e-4, warmup=500, decay="cosine")
    at = {0: 1e-6, 249: 2.5e-4, 499: 5e-4, 500: 5e-4, 4250: 2.5e-4, 7999: 2.193e-11}
    for step, rate in at.items():
        assert learning_rate(reduced, step) == pytest.approx(rate, rel=1e-3)


def test_what_has_no_streams_is_refused() -> None:
    with pytest.raises(FileFormatError, match="has no <eos>: it holds WordPieces"):
        Streams(excerpt("enwiki-wp"), 4, 8, 0, READINGS)
    with pytest.raises(FileFormatError, match="has no arrays train,"):
        Streams(excerpt("nli"), 4, 8, 0, READINGS)
    pack = words_excerpt()
    with pytest.raises(InputError, match="leave no segment of 8"):
        Streams(_cut(pack, 31), 4, 8, 0, READINGS)
    with pytest.raises(InputError, match=r"readings of \[8, 8\] tokens"):
        Streams(pack, 4, 8, 0, (READINGS[0], READINGS[0]))
    told = objective()
    with pytest.raises(TrainingError, match="Segments of 9 tokens are not read"):
        told.scores(
            task()
            .batch("test", Draw(torch.tensor([0]), 8))
            ._replace(tokens=torch.zeros(1, 9, dtype=torch.long))
        )
    with pytest.raises(TrainingError, match="this task names none"):
        told(task().batch("test", Draw(torch.tensor([0]), 8))._replace(streams=None))


def _cut(pack: Pack, tokens: int) -> Pack:
    keys = ("name", "licence", "tokeniser", "sources", "counts")
    starts = pack.arrays["train_articles"]
    arrays = pack.arrays | {"train": pack.arrays["train"][:tokens]}
    arrays["train_articles"] = starts[starts < tokens]
    return new_pack({key: pack.header[key] for key in keys}, arrays)
