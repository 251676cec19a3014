"""Models on our operator are recorded as CUDA graphs, whatever padding comes afterwards."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.layers.hugging_face.models import CASES, B, N, V, inputs, small
from tests.train.replaying import replaying
from torch import Tensor

import everyformer
from everyformer.train.recorded import WARM_UP, Recorded

TOLERANCE = {"cpu": 1e-4, "cuda": 2e-2}
"""Of a loss; the kernels' products are rounded to TF32."""


def batches() -> list[tuple[Tensor, Tensor]]:
    """Tokens, and which count: all at first, then not those on either side or between."""
    generator = torch.Generator().manual_seed(3)
    hidden = [[]] * (WARM_UP + 1) + [[0, 1], [N - 2, N - 1], [4, 6], []]
    found: list[tuple[Tensor, Tensor]] = []
    for places in hidden:
        seen = torch.ones(B, N, dtype=torch.long)
        seen[1, places] = 0
        found.append((torch.randint(2, V, (B, N), generator=generator), seen))
    return found


def learner(model: Any) -> Callable[..., Tensor]:
    """An update, which gives its loss over the tokens that count."""
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-2)

    def update(**given: Tensor) -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        counts = given["attention_mask"]
        if model.config.is_encoder_decoder:
            counts = torch.ones_like(counts)
        loss = (model(**given, use_cache=False).logits * counts[..., None]).square().mean()
        loss.backward()
        optimiser.step()
        return loss

    return update


def compare(name: str, device: str) -> int:
    """Updates with and without a graph; how many were recorded.

    A mask may hide nothing when it is recorded, and any token later.
    """
    library = pytest.importorskip("transformers")
    model, other = (small(name, library).to(device) for _ in range(2))
    everyformer.speed_up(model)
    plain, step = learner(other), Recorded(learner(model))
    for batch in batches():
        ids, seen = (x.to(device) for x in batch)
        expected = plain(**inputs(other, seen, ids)).detach()
        found = step(**inputs(model, seen, ids))
        torch.testing.assert_close(found, expected, rtol=TOLERANCE[device], atol=0.0)
    return step.graphs


@pytest.mark.rows(6)
@pytest.mark.parametrize("name", CASES)
def test_replayed_updates_are_those_of_python(name: str) -> None:
    with replaying() as graphs:
        assert compare(name, "cpu") == 1
    assert [graph.replays for graph in graphs] == [len(batches()) - WARM_UP]


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_replays_them(name: str) -> None:
    assert compare(name, "cuda") == 1
