"""The tasks, and that the cells are those of the paper."""

import pytest
import torch
from torch import Tensor

from everyformer.data.batch import FILLING, Draw
from everyformer.data.randomness import Split
from everyformer.data.task import IGNORED
from everyformer.errors import TrainingError
from everyformer.experiments.urpe_synthetic.cells import SCALES, cells
from everyformer.experiments.urpe_synthetic.tasks import Synthetic
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import EncoderConfig


def _rows(task: Synthetic, split: Split, count: int) -> tuple[Tensor, Tensor]:
    """Tokens and labels of the first sequences."""
    found = task.batch(split, Draw(torch.arange(count), task.length))
    return found.tokens, found.labels


def test_position_identification() -> None:
    words, labels = _rows(Synthetic("pi", 8, 10, 0), "train", 50)
    assert (words.min(), words.max()) == (0, 9), "all tokens are drawn"
    assert (labels == torch.arange(8)).all(), "position 1 has a label like the others"


def test_even_token_prediction() -> None:
    words, labels = _rows(Synthetic("etp", 6, 10, 0), "train", 50)
    assert torch.equal(labels[:, :3], words[:, [1, 3, 5]])
    assert (labels[:, 3:] == 10).all(), "EOS is no token"


def test_a_special_token_has_no_label() -> None:
    plain, special = (Synthetic("etp", 6, 10, 0, special=s) for s in (False, True))
    words, labels = _rows(special, "test", 5)
    assert torch.equal(words[:, 1:], _rows(plain, "test", 5)[0])
    assert (words[:, 0] == 11).all()
    assert (labels[:, 0] == IGNORED).all()
    assert special.vocab_size == 12


def test_filling_and_special_tokens_weigh_nothing() -> None:
    task = Synthetic("etp", 6, 10, 0, special=True)
    found = task.batch("train", Draw(torch.tensor([4, FILLING]), 7))
    assert found.weights.tolist() == [[0.0, *[1.0] * 6], [0.0] * 7]


def test_an_odd_length_is_refused() -> None:
    with pytest.raises(TrainingError, match="Use 8"):
        Synthetic("etp", 7, 10, 0)
    with pytest.raises(TrainingError, match="evaluated=1 gives no standard error"):
        Synthetic("etp", 8, 10, 0, evaluated=1)


def test_the_paper_has_eighteen_cells_and_they_come_first() -> None:
    found = cells("paper", [0], {})
    first = [(c.labels["task"], c.labels["method"], c.labels["tokens"]) for c in found[:18]]
    assert set(first) == {
        (task, method, tokens)
        for task in ("pi", "etp")
        for method in ("urpe", "t5", "none")
        for tokens in (10, 1000, 10000)
    }
    assert [method for _, method, _ in first[:6]] == ["urpe"] * 6
    assert len(found) == 18 + 7 * 2


def test_the_model_is_that_of_the_paper() -> None:
    found = {cell.name: cell.settings["model"] for cell in cells("paper", [0], {})}
    model = EncoderConfig.from_json(found["etp/urpe/1000/0"])
    assert (model.layers, model.dim, model.heads, model.ffn) == (3, 768, 12, 3072)
    assert (model.norm, model.max_len, model.head) == ("post", 128, "tied")
    assert EncoderConfig.from_json(found["pi/urpe/1000/0"]).outputs == 128
    plain = EncoderConfig.from_json(found["etp/none/1000/0"])
    sizes = [
        sum(p.numel() for p in Encoder(config, device="meta").parameters())
        for config in (model, plain)
    ]
    assert sizes[0] - sizes[1] == 2 * 3060, "B and C, shared by all layers"
    assert SCALES["paper"].train.precision == "bf16"


def test_idle_tokens_are_for_the_tensor_cores_alone() -> None:
    """They are never drawn, and no label names one."""
    found = {cell.name: cell.settings["model"] for cell in cells("paper", [0], {})}
    sizes = {name: model["vocab_size"] for name, model in found.items()}
    assert sizes["etp/urpe/10000/0"] == 10_008
    assert sizes["pi/urpe/10000/0"] == 10_000
    words, labels = _rows(Synthetic("etp", 128, 10_000, 0), "train", 64)
    assert words.max() < 10_000
    assert labels.max() == 10_000


def test_settings_can_be_changed() -> None:
    found = cells("paper", [3], {"lr": 0.5, "steps": 7})
    assert {c.settings["train"]["lr"] for c in found} == {0.5}
    assert {c.settings["train"]["steps"] for c in found} == {7}
    assert {c.settings["task"]["seed"] for c in found} == {3}
    with pytest.raises(TrainingError, match="no learning_rate"):
        cells("paper", [0], {"learning_rate": 1})
