"""Losses and scores by hand, and what an objective refuses."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.train.ragged import CONFIG, Ragged, masked_language
from torch.nn import functional

from everyformer.data.batch import FILLING, Batch, Draw
from everyformer.data.packs.translation_excerpt import translation_excerpt
from everyformer.data.randomness import Split
from everyformer.data.translation import Translations
from everyformer.errors import TrainingError
from everyformer.layers.decay import biases_and_norms, parameter_groups
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_decoder import (
    EncoderDecoderConfig,
    EncoderDecoderModel,
)
from everyformer.train.config import TrainConfig
from everyformer.train.evaluation import scores_of, summaries
from everyformer.train.loop import train
from everyformer.train.objective import token_losses
from everyformer.train.objectives.classify import Classify
from everyformer.train.objectives.labels import Labels
from everyformer.train.objectives.masked import MaskedLanguage
from everyformer.train.objectives.span import Span
from everyformer.train.objectives.translate import Translate
from everyformer.train.processes import accelerator

TRANSLATIONS = Translations(translation_excerpt(), 0, lengths=(16, 32), evaluated=8)
NUMBERS = torch.tensor([3, FILLING, 8, 5])


@torch.no_grad()
def test_masked_language_is_the_loss_of_bert() -> None:
    """The mean over masked tokens plus the mean over pairs; filling changes nothing."""
    objective = masked_language()
    batch = Ragged().batch("train", Draw(NUMBERS, 8))
    means = objective(batch) / objective.weights(batch)
    encoder, told, right = objective.encoder, list[float](), list[float]()
    states = encoder.states(batch.tokens, segments=batch.segments)
    logits = encoder(batch.tokens, segments=batch.segments).log_softmax(-1)
    assert batch.places is not None
    assert batch.next_labels is not None
    for row in (0, 2, 3):
        for place, label, weight in zip(
            batch.places[row], batch.labels[row], batch.weights[row], strict=True
        ):
            told += [-float(logits[row, place, label])] if weight else []
            right += [float(logits[row, place].argmax() == label)] if weight else []
    assert objective.next is not None
    pairs = functional.cross_entropy(
        objective.next(encoder.pooled(states))[[0, 2, 3]], batch.next_labels[[0, 2, 3]]
    )
    assert means.tolist() == pytest.approx([sum(told) / len(told), float(pairs)], rel=1e-5)
    scores = objective.scores(batch)
    share = batch.weights.sum(-1)
    assert float((scores["nats"] * share).sum() / share.sum()) == pytest.approx(
        sum(told) / len(told), rel=1e-5
    )
    assert float((scores["accuracy"] * share).sum()) == pytest.approx(sum(right))


def test_the_gradient_is_that_of_the_loss() -> None:
    """Not of a sum, nor of a mean of means: three parts against one backward pass."""
    torch.manual_seed(0)
    objective = masked_language().double()
    draws = [Draw(NUMBERS, 8), Draw(NUMBERS * 2, 8), Draw(NUMBERS + 9, 6)]
    batches = [Ragged().batch("train", draw) for draw in draws]
    total = sum((objective.weights(batch) for batch in batches), torch.zeros(2))
    sums = sum((objective(batch) for batch in batches), torch.zeros(2).double())
    (sums / total).sum().backward()
    wanted = [p.grad for p in objective.parameters()]
    objective.zero_grad()
    for batch in batches:
        (objective(batch) / total).sum().backward()
    for p, gradient in zip(objective.parameters(), wanted, strict=True):
        assert gradient is not None
        assert p.grad is not None
        torch.testing.assert_close(p.grad, gradient, rtol=1e-10, atol=1e-14)


def _span(logits: list[tuple[float, float]], **more: Any) -> dict[str, list[float]]:
    """The best span of one window whose start and end logits are given."""

    class Told(Span):
        def _logits(self, batch: Batch) -> torch.Tensor:
            return torch.tensor([logits])

    n = len(logits)
    objective = Told(Encoder(replace(CONFIG, head="none", pooler=False)), longest=3)
    nothing = torch.zeros(1, 2)
    batch = Batch(torch.zeros(1, n, dtype=torch.long), nothing, nothing, **more)
    return {name: rows.tolist() for name, rows in objective.scores(batch).items()}


def test_the_best_span_lies_in_the_context() -> None:
    segments = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]])
    padding = torch.tensor([[False] * 7 + [True]])
    # Tokens: question, question, context x 4, [SEP], padding; the largest are forbidden.
    logits = [(9.0, 9.0), (9.0, 9.0), (4.0, 0.0), (1.0, 1.0), (0.0, 2.0), (3.0, 5.0)]
    logits += [(9.0, 9.0), (9.0, 9.0)]
    given: dict[str, Any] = {"segments": segments, "padding": padding}
    assert _span(logits, **given) == {"score": [8.0], "start": [5], "end": [5]}
    # 4 + 5 would be the best of all, but it has four tokens, and three are allowed.
    starts = torch.tensor([[1, 1, 1, 1, 1, 0, 1, 1]])
    found = _span(logits, **given, places=starts)
    assert found == {"score": [6.0], "start": [2], "end": [4]}, "(3, 5) has 6 too, later"
    none = _span(logits, **given, places=starts * 0)
    assert none["score"] == [-math.inf]


def test_spans_are_learnt_without_a_nan_from_filling() -> None:
    objective = Span(Encoder(replace(CONFIG, head="none", pooler=False)))
    tokens = torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]])
    batch = Batch(
        tokens, torch.tensor([[1, 2], [0, 0]]), torch.tensor([1.0, 0.0]),
        segments=torch.zeros_like(tokens), padding=tokens == 0,
    )  # fmt: skip
    loss = objective(batch) / objective.weights(batch)
    loss.sum().backward()
    logits = objective.ends(objective.encoder.states(tokens[:1]))[0]
    wanted = functional.cross_entropy(logits.T, torch.tensor([1, 2]))
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5), "the mean of both"
    for name, p in objective.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name


@torch.no_grad()
def test_classes_weigh_what_they_should() -> None:
    objective = Classify(Encoder(replace(CONFIG, head="none")), 3, dropout=0.0)
    tokens = torch.tensor([[1, 2], [3, 4], [5, 6]])
    batch = Batch(tokens, torch.tensor([0, 1, 2]), torch.tensor([1.0, 0.0, 2.0]))
    loss = float((objective(batch) / objective.weights(batch)).detach())
    pooled = objective.encoder.pooled(objective.encoder.states(tokens))
    told = objective.classes(pooled).log_softmax(-1)
    assert loss == pytest.approx(-float(told[0, 0] + 2 * told[2, 2]) / 3, rel=1e-5)
    accuracy = objective.scores(batch)["accuracy"]
    assert accuracy.tolist() == (told.argmax(-1) == batch.labels).float().tolist()


def test_parts_that_nothing_trains_are_refused() -> None:
    encoder = Encoder(CONFIG)
    for make, told in (
        (lambda: Classify(encoder, 3), "a head that nothing trains; set head='none'"),
        (lambda: Span(encoder), "head='none'.*pooler=False"),
        (lambda: Labels(encoder), "a pooler that nothing trains"),
        (lambda: MaskedLanguage(Encoder(replace(CONFIG, pooler=False))), "no pooler"),
        (lambda: Labels(Encoder(replace(CONFIG, head="none"))), "no head; set head='tied'"),
    ):
        with pytest.raises(TrainingError, match=told):
            make()
    batch = Ragged().batch("train", Draw(NUMBERS, 8))
    for field, told in (("places", "gives none"), ("next_labels", "next_sentence=False")):
        with pytest.raises(TrainingError, match=told):
            masked_language()(batch._replace(**{field: None}))


def test_decay_stays_away_from_biases_and_norms() -> None:
    encoder = Encoder(replace(CONFIG, encoding="t5+urpe"))
    names = {id(p): name for name, p in encoder.named_parameters()}
    decayed, tables, plain = (
        {names[id(p)] for p in group["params"]}
        for group in parameter_groups(encoder, 0.1, decay_biases=False)
    )
    assert decayed | tables | plain == set(names.values())
    assert plain == biases_and_norms(encoder)
    assert all("bias" in name or "norm" in name for name in plain)
    assert not any("bias" in name or "norm" in name for name in decayed)
    assert {"tokens.weight", "blocks.0.mixer.in_proj_weight"} <= decayed
    assert all(name.endswith("table") for name in tables)
    config = TrainConfig(
        steps=2, batch=10, lr=1e-3, weight_decay=0.5, decay_biases=False, table_lr=2.0
    )
    assert train(masked_language, Ragged(), config).steps == 2


class Twice(Ragged):
    """An evaluation that scores every example twice."""

    def evaluation(
        self, split: Split, batch: int, part: int, parts: int, device: torch.device
    ) -> Iterator[Draw]:
        for _ in range(2):
            yield from super().evaluation(split, batch, part, parts, device)


class Nothing(Ragged):
    """An evaluation without an example."""

    def evaluation(
        self, split: Split, batch: int, part: int, parts: int, device: torch.device
    ) -> Iterator[Draw]:
        yield Draw(torch.tensor([FILLING]), 8)


def test_an_evaluation_that_lies_is_refused() -> None:
    torch.manual_seed(0)
    score = masked_language().eval().scores
    found = scores_of(Ragged(), "test", score, accelerator(), 8)
    assert {len(rows) for rows in found.values()} == {37}
    assert summaries(found)["windows"].mean_sampled == 18.0
    whole = scores_of(Ragged(), "test", score, accelerator(), 64)
    assert found["nats"] == pytest.approx(whole["nats"], rel=1e-5)
    for task, told in ((Twice(), "an example twice"), (Nothing(), "no example")):
        with pytest.raises(TrainingError, match=told):
            scores_of(task, "test", score, accelerator(), 8)


def test_an_accuracy_that_is_not_measured_ends_no_run() -> None:
    class Unnamed(Ragged):
        def judged(self, split: Any, scores: Any, numbers: Any) -> Any:
            return {"f1": scores["accuracy"]}

    config = TrainConfig(steps=2, batch=10, lr=1e-3, stop_at=0.5, evaluate_every=1)
    with pytest.raises(TrainingError, match=r"stop_at=0.5 is an accuracy, .* measures f1"):
        train(masked_language, Unnamed(), config)


def test_label_smoothing_is_that_of_torch() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 5, 11, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 11, (3, 5))
    labels[0, 2] = -100
    head = torch.nn.Identity()
    for smoothing in (0.0, 0.1, 0.7):
        ours = token_losses(head, logits, labels, smoothing)
        theirs = functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), reduction="none",
            label_smoothing=smoothing,
        ).view(3, 5)  # fmt: skip
        torch.testing.assert_close(ours, theirs)
        assert ours[0, 2] == 0
        one, other = (torch.autograd.grad(x.sum(), logits)[0] for x in (ours, theirs))
        torch.testing.assert_close(one, other)


def _translate() -> Translate:
    torch.manual_seed(1)
    config = EncoderDecoderConfig(
        vocab_size=TRANSLATIONS.pack.vocabulary, max_len=32, dim=8, encoder_layers=1,
        decoder_layers=1, heads=2, ffn=16, dropout=0.0,
    )  # fmt: skip
    return Translate(EncoderDecoderModel(config, dtype=torch.float64)).eval()


@torch.no_grad()
def test_a_translation_is_scored_token_by_token_and_without_smoothing() -> None:
    objective, task = _translate(), TRANSLATIONS
    together = task.batch("test", Draw(torch.tensor([1, FILLING, 4]), 32))
    found = objective.scores(together)
    assert found["nats"][1] == found["tokens"][1] == 0, "filling"
    total = 0.0
    for row, number in ((0, 1), (2, 4)):
        a, b = (int(sizes[number]) for sizes in task.sizes("test"))
        tokens, target = together.tokens[row, None, :a], together.target
        assert target is not None
        logits = objective.encoder(tokens, target[row, None, :b]).log_softmax(-1)[0]
        labels = together.labels[row, :b]
        nats = -logits.gather(1, labels[:, None]).sum()
        assert found["nats"][row] == pytest.approx(float(nats))
        assert found["tokens"][row] == b
        smooth = (
            -0.9 * logits.gather(1, labels[:, None]).sum() - 0.1 * logits.mean(-1).sum()
        )
        total += float(smooth)
    assert float(objective(together)) == pytest.approx(total)
    assert float(objective.weights(together)) == float(found["tokens"].sum())
    with pytest.raises(TrainingError, match=r"smoothing=1\.0 is not a probability"):
        Translate(objective.encoder, 1.0)
    with pytest.raises(TrainingError, match="needs targets"):
        objective(together._replace(target=None))


@torch.no_grad()
def test_scores_of_translations_do_not_know_the_buckets() -> None:
    """Padding to 16 or 32 tokens, alone or together: the same nats, whatever the batch."""
    objective = _translate()
    means = [
        summaries(scores_of(TRANSLATIONS, "test", objective.scores, accelerator(), batch))
        for batch in (64, 256)
    ]
    whole = Translations(translation_excerpt(), 0, lengths=(32,), evaluated=8)
    means.append(summaries(scores_of(whole, "test", objective.scores, accelerator(), 128)))
    for name in ("nats", "accuracy"):
        values = [one[name].mean_sampled for one in means]
        assert values == pytest.approx([values[0]] * 3, rel=1e-9)
