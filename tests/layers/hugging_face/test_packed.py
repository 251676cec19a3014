"""Several sequences in one row, told by positions that begin anew: no mask of n x n."""

from typing import Any

import pytest
import torch
from tests.layers.hugging_face.models import small
from tests.train.replaying import replaying
from torch import Tensor

import everyformer
from everyformer.layers import add_urpe
from everyformer.layers.hugging_face import attend
from everyformer.ops.toeplitz_attention import chunked
from everyformer.train.recorded import WARM_UP, Recorded

NAMES = ("GPT2", "Llama", "Mistral", "Qwen2")
IDS = torch.randint(2, 60, (1, 13), generator=torch.Generator().manual_seed(0))
LENGTHS = ((4, 6, 1, 2), (13,), (1,) * 13, (12, 1))


@pytest.fixture(scope="module")
def library() -> Any:
    return pytest.importorskip("transformers")


def positions(lengths: tuple[int, ...]) -> Tensor:
    return torch.cat([torch.arange(length) for length in lengths])[None]


def outcome(model: Any, **given: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and the gradients of all parameters."""
    model.zero_grad()
    logits = model(IDS, use_cache=False, **given).logits
    logits.square().mean().backward()
    return logits.detach(), {
        name: weight.grad.clone()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the operator is given as mask of all pairs."""
    found: list[Any] = []
    real = attend.toeplitz_attention

    def spy(*given: Any, attn_mask: Any, **more: Any) -> Tensor:
        found.append(attn_mask)
        return real(*given, attn_mask=attn_mask, **more)

    monkeypatch.setattr(attend, "toeplitz_attention", spy)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_packed_rows(name: str, library: Any, masks: list[Any]) -> None:
    """As transformers computes them, and as each sequence alone; so do gradients."""
    model = small(name, library)
    for lengths in LENGTHS:
        given = {"position_ids": positions(lengths)}
        expected, gradients = outcome(model, **given)
        everyformer.speed_up(model)
        found, own = outcome(model, **given)
        assert (found - expected).norm() < 1e-5 * expected.norm()
        for key, gradient in gradients.items():
            assert (own[key] - gradient).norm() < 1e-4 * gradient.norm() + 1e-7, key
        alone = [model(x, use_cache=False).logits for x in IDS.split(lengths, dim=1)]
        assert (found - torch.cat(alone, dim=1)).norm() < 1e-5 * found.norm()
        everyformer.restore(model)
    assert masks
    assert set(masks) == {None}


def test_weights_of_packed_rows(library: Any) -> None:
    model = small("Llama", library)
    model.set_attn_implementation("eager")
    given = {"position_ids": positions(LENGTHS[0]), "output_attentions": True}
    expected = model(IDS, use_cache=False, **given).attentions
    everyformer.speed_up(model)
    found = model(IDS, use_cache=False, **given).attentions
    for own, weights in zip(found, expected, strict=True):
        assert (own - weights).abs().max() < 1e-6


def test_a_gain_counts_offsets_within_a_sequence(library: Any) -> None:
    model = small("GPT2", library)
    add_urpe(model, max_len=16)
    for name, weight in model.named_parameters():
        if "gain" in name:
            torch.nn.init.normal_(weight)
    whole = model(IDS, position_ids=positions(LENGTHS[0]), use_cache=False).logits
    alone = [model(x, use_cache=False).logits for x in IDS.split(LENGTHS[0], dim=1)]
    assert (whole - torch.cat(alone, dim=1)).norm() < 1e-5 * whole.norm()


def test_several_rows_and_windows_keep_a_mask(library: Any, masks: list[Any]) -> None:
    """The operator takes packed sequences in one row, and no window."""
    for name, ids, window in (("GPT2", IDS.expand(2, -1), None), ("Mistral", IDS, 3)):
        model = small(name, library)
        if window:
            model.config.sliding_window = window
        places = positions(LENGTHS[0]).expand(len(ids), -1)
        expected = model(ids, position_ids=places, use_cache=False).logits
        masks.clear()
        everyformer.speed_up(model)
        found = model(ids, position_ids=places, use_cache=False).logits
        assert (found - expected).norm() < 1e-5 * expected.norm()
        assert None not in masks


def compare(library: Any, device: str) -> int:
    """Outputs with and without a graph; how many were recorded.

    Where sequences begin is a tensor of one shape, other numbers in each replay.
    """
    model, other = (small("Llama", library).eval().to(device) for _ in range(2))
    everyformer.speed_up(model)

    def logits(ids: Tensor, places: Tensor) -> Tensor:
        return model(ids, position_ids=places, use_cache=False).logits

    step, ids = Recorded(logits), IDS.to(device)
    for lengths in (LENGTHS[0],) * (WARM_UP + 1) + LENGTHS:
        places = positions(lengths).to(device)
        expected = other(ids, position_ids=places, use_cache=False).logits
        tolerance = 1e-5 if device == "cpu" else 1e-2
        assert (step(ids, places) - expected).norm() < tolerance * expected.norm(), lengths
    return step.graphs


def test_a_graph_takes_other_sequences(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for steps on a CPU, which leave out keys by number, nobody reads them."""

    def every_key(self: Any, row: int, end: int) -> tuple[int, int]:
        return 0, self.n_k

    steps: Any = chunked
    monkeypatch.setattr(steps._Problem, "_seen", every_key)
    with replaying():
        assert compare(library, "cpu") == 1


@pytest.mark.gpu
def test_a_graph_on_a_gpu_takes_other_sequences(library: Any) -> None:
    assert compare(library, "cuda") == 1
