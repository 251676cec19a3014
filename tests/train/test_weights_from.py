"""Weights go from one run to the next, and no others do."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.train.ragged import CONFIG, Ragged, masked_language

from everyformer.errors import TrainingError
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.train.config import TrainConfig
from everyformer.train.loop import Outcome, train
from everyformer.train.objective import Objective
from everyformer.train.objectives.classify import Classify
from everyformer.train.objectives.masked import MaskedLanguage
from everyformer.train.weights_from import ENCODER, encoder_from, identity_hash

TRAINED = TrainConfig(steps=3, batch=10, lr=1e-3, checkpoint_every=3)


def _run(folder: Path, build: Callable[[], Objective], **more: Any) -> Outcome:
    return train(build, Ragged(), TRAINED, folder=folder, **more)


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "parent"
    _run(folder, masked_language, identity={"model": {"seed": 7}})
    return folder


def _identity(folder: Path) -> Any:
    return json.loads((folder / "run.json").read_text())


def test_a_later_run_starts_from_the_weights_and_names_its_parent(
    parent: Path, tmp_path: Path
) -> None:
    config = replace(CONFIG, head="none", dropout=0.1)
    started = Classify(Encoder(config), 3)
    found = encoder_from(parent, started, _identity(parent))
    assert found == identity_hash(_identity(parent))
    stored = torch.load(parent / "checkpoint.pt", weights_only=True)["model"]
    for name, p in started.encoder.named_parameters():
        assert torch.equal(p, stored[f"encoder.{name}"]), name
    own = masked_language()
    fresh = own.encoder.state_dict()["tokens.weight"].clone()
    _run(tmp_path / "child", lambda: own, parent=parent)
    assert _identity(tmp_path / "child")["parent"] == found
    moved = own.encoder.state_dict()["tokens.weight"] - stored["encoder.tokens.weight"]
    assert 0 < moved.abs().max() < 0.01, "three updates away from the parent"
    assert (fresh - stored["encoder.tokens.weight"]).abs().max() > 0.01
    with pytest.raises(TrainingError, match=r"parent is .* there and None here"):
        _run(tmp_path / "child", masked_language, resume=True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"norm": "post"}, "encoder.norm is 'pre' there and 'post' here"),
        ({"dim": 32}, r"tokens.weight has the shape \(12, 16\) there and \(12, 32\) here"),
        ({"mixers": "average"}, "encoder.mixers is"),
        ({"max_len": 9}, "encoder.max_len is 8 there and 9 here"),
    ],
)
def test_a_parent_with_another_encoder_is_refused(
    parent: Path, change: dict[str, Any], told: str
) -> None:
    before = Encoder(replace(CONFIG, **change))
    objective = MaskedLanguage(before)
    kept = {name: p.clone() for name, p in objective.named_parameters()}
    with pytest.raises(TrainingError, match=told):
        encoder_from(parent, objective)
    assert all(torch.equal(p, kept[name]) for name, p in objective.named_parameters())


def test_a_parent_with_other_settings_is_refused(parent: Path, tmp_path: Path) -> None:
    wanted = _identity(parent)
    wanted["train"]["lr"] = 5.0
    wanted["task"]["name"] = "smooth"
    with pytest.raises(TrainingError, match=r"task.name is 'ragged' there and 'smooth'.*"
                       r"train.lr is 0.001 there and 5.0 here"):  # fmt: skip
        _run(tmp_path / "new", masked_language, parent=parent, parent_identity=wanted)


def test_what_a_parent_lacks_is_named(parent: Path, tmp_path: Path) -> None:
    plain = replace(CONFIG, pooler=False)
    _run(tmp_path / "plain", lambda: MaskedLanguage(Encoder(plain), next_sentence=False))
    with pytest.raises(TrainingError, match=r"pooler.weight is not there; pooler.bias is"):
        encoder_from(tmp_path / "plain", masked_language())


def test_a_missing_or_damaged_parent_is_refused(parent: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(TrainingError, match=r"has left no weights: there is no .*missing"):
        _run(tmp_path / "new", masked_language, parent=missing)
    assert not (tmp_path / "new").exists(), "refused before anything is written"
    missing.mkdir()
    whole = (parent / ENCODER).read_bytes()
    for bad in (b"", b"{}", whole[: len(whole) // 2], b"\xff" * 100):
        (missing / ENCODER).write_bytes(bad)
        with pytest.raises(TrainingError, match="cannot be read as the weights of a run"):
            encoder_from(missing, masked_language())
    for header in ({}, {"run": "[]", "encoder": "null"}, {"run": "{", "encoder": "{}"}):
        save_file({"a": torch.zeros(1)}, missing / ENCODER, header)
        with pytest.raises(TrainingError, match="Delete it, and resume"):
            encoder_from(missing, masked_language())


def test_a_run_that_a_deadline_ended_leaves_no_weights(tmp_path: Path) -> None:
    config = replace(TRAINED, evaluate_every=1)
    train(masked_language, Ragged(), config, folder=tmp_path / "a", deadline=0.0)
    assert not (tmp_path / "a" / ENCODER).exists()


def test_a_config_is_compared_as_json_holds_it(parent: Path) -> None:
    """A tuple of mixers is the list that the header holds."""
    config = EncoderConfig.from_json(CONFIG.to_json())
    assert config.mixers == ("attention", "attention")
    encoder_from(parent, MaskedLanguage(Encoder(config)))
