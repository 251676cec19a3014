"""torch.compile takes models on our operator whole, as it takes them otherwise."""

from typing import Any

import pytest
import torch
from tests.layers.hugging_face.models import inputs, paddings, small

import everyformer

pytestmark = pytest.mark.compile


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    ("name", "padded"),
    [("T5", "left"), ("Bloom", "left"), ("FalconRW", "nothing"), ("GPT2", "nothing")],
)
def test_compiled(name: str, padded: str) -> None:
    library = pytest.importorskip("transformers")
    model, seen = small(name, library), paddings()[padded]
    everyformer.speed_up(model)
    given = {**inputs(model, seen), "use_cache": False}
    compiled: Any = torch.compile(model, fullgraph=True)
    found: list[dict[str, torch.Tensor]] = []
    for run in (model, compiled):
        model.zero_grad()
        logits = run(**given).logits
        if seen is not None and not model.config.is_encoder_decoder:
            logits = logits[seen.bool()]
        logits.square().mean().backward()
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        found.append({"logits": logits.detach(), **grads})
    for key, plain in found[0].items():
        assert (found[1][key] - plain).norm() < 1e-5 * (plain.norm() + 1e-3), key
