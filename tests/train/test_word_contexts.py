"""Words in contexts: by hand, in every mixer, from the folder of a run, and refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from everyformer.cli.app import app
from everyformer.data.packs.excerpt import excerpt
from everyformer.data.windows import MaskedWindows
from everyformer.errors import InputError, TrainingError
from everyformer.experiments.contexts import contexts_of
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import MIXERS, EncoderConfig
from everyformer.train.objectives.masked import MaskedLanguage
from everyformer.train.weights_from import write_encoder
from everyformer.train.word_contexts import LayerContexts, word_contexts

CONFIG = EncoderConfig(20, 8, dim=16, layers=2, heads=2, ffn=32, filters=2, filter_length=5)


def texts(count: int = 4, n: int = 8) -> Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randint(5, 20, (count, n), generator=random)


def followed(mixers: str, **more: Any) -> list[LayerContexts]:
    torch.manual_seed(0)
    encoder = Encoder(replace(CONFIG, mixers=mixers, **more))
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return word_contexts(encoder, texts(), (1, 2, 3))


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_has_contexts(mixer: str) -> None:
    """Embeddings know the word alone; behind the first mixer a token knows more."""
    embeddings, first, second = followed(mixer)
    assert embeddings.by_context_sampled == embeddings.share_of_context == 0
    assert embeddings.by_word_sampled > 0
    assert (first.mixer, second.layer) == (mixer, 2)
    for layer in (first, second):
        assert layer.by_context_sampled > 1e-3
        assert 0 < layer.share_of_context < 1


def test_a_filter_of_one_token_hears_no_context() -> None:
    """The negative control: it is never more than a word and its place."""
    for layer in followed("separable", filter_length=1):
        assert layer.by_context_sampled == 0
        assert layer.by_word_sampled > 0


def test_a_word_is_followed_through_all_layers() -> None:
    """The numbers, by loops over words and contexts."""
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).train()
    contexts, words, place = texts(3), (1, 2), 5
    found = word_contexts(encoder, contexts, words, place)
    assert encoder.training
    assert next(encoder.parameters()).dtype == torch.float32
    encoder.double().eval()
    states: dict[tuple[int, int], Tensor] = {}
    for w in words:
        for c, context in enumerate(contexts):
            tokens = context.clone()
            tokens[place] = w
            state = encoder.blocks[0](encoder.embedded(tokens[None]))[0, place]
            states[w, c] = state.detach()
    largest = max(float(q.norm()) for q in states.values())
    pairs = [(w, c, d) for w in words for c in range(3) for d in range(c)]
    wanted = [float((states[w, c] - states[w, d]).norm()) / largest for w, c, d in pairs]
    assert found[1].by_context_sampled == pytest.approx(sum(wanted) / len(wanted))
    apart = [float((states[1, c] - states[2, c]).norm()) / largest for c in range(3)]
    assert found[1].by_word_sampled == pytest.approx(sum(apart) / 3)


def test_the_gap_is_that_of_all_tokens() -> None:
    """[CLS] at the same place of two texts collides as an embedding, and not behind it."""
    torch.manual_seed(0)
    encoder, contexts = Encoder(CONFIG), texts()
    contexts[:, 0] = 4
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    embeddings, first, _ = word_contexts(encoder, contexts, (1, 2))
    assert not embeddings.separating
    assert embeddings.gap_sampled < 1e-12
    assert first.separating


@pytest.mark.parametrize(
    ("contexts", "words", "place", "message"),
    [
        (texts()[:1], (1, 2), None, "holds 1 texts"),
        (texts()[[0, 0]], (1, 2), None, "all different"),
        (texts(), (1,), None, "give two or more"),
        (texts(), (1, 1), None, "all different"),
        (texts(), (1, 2), 8, "place=8 is not in a text of 8"),
        (texts(), (1, 20), None, "token 20 is not one of the encoder's 20"),
    ],
)
def test_refusals(
    contexts: Tensor, words: tuple[int, ...], place: int | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        word_contexts(Encoder(CONFIG), contexts, words, place)


def left_by_a_run(folder: Path, **changes: Any) -> Path:
    """What pre-training on the excerpt leaves, without training."""
    pack = excerpt("enwiki-wp")
    config = replace(CONFIG, vocab_size=pack.vocabulary, max_len=32, segments=2)
    task = MaskedWindows(pack, 32, 0, evaluated=8).describe() | changes
    folder.mkdir()
    objective = MaskedLanguage(Encoder(replace(config, pooler=True)))
    write_encoder(folder, objective, {"task": task})
    return folder


def test_the_command(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    folders = [str(left_by_a_run(tmp_path / name)) for name in ("one", "two")]
    picture = tmp_path / "contexts.png"
    arguments = ["contexts", *folders, "--contexts", "5", "--words", "3"]
    shown = CliRunner().invoke(app, [*arguments, "--picture", str(picture)])
    assert shown.exit_code == 0, shown.output
    assert "3 words in 5 contexts of 32 tokens: the, " in " ".join(shown.output.split())
    assert picture.stat().st_size > 5_000
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).output)
    assert [run["name"] for run in told] == ["one", "two"]
    assert [layer["mixer"] for layer in told[0]["layers"]] == ["", *["attention"] * 2]


def test_runs_on_other_texts_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    for name, changes in (("mnli", {"task": "pairs"}), ("other", {"pack_sha256": "0"})):
        with pytest.raises(TrainingError, match="its tokens may mean other words"):
            contexts_of(left_by_a_run(tmp_path / name, **changes))
    with pytest.raises(TrainingError, match="holds neither enwiki-wp"):
        contexts_of(tmp_path / "mnli", tmp_path)
    with pytest.raises(TrainingError, match="has left no weights"):
        contexts_of(tmp_path)
    with pytest.raises(TrainingError, match="at least two of each"):
        contexts_of(left_by_a_run(tmp_path / "few"), contexts=1)
