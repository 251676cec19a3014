"""On a GPU: the kernels in models of transformers, beside transformers in float32."""

from typing import Any

import pytest
import torch
from tests.layers.hugging_face.models import CASES, V, inputs, real, small
from torch import Tensor

import everyformer

pytestmark = pytest.mark.gpu

N = 300


def moved(name: str, padded: bool) -> tuple[Any, dict[str, Tensor], Tensor]:
    library = pytest.importorskip("transformers")
    model = real(name, library).cuda()
    made = torch.Generator("cuda").manual_seed(0)
    ids = torch.randint(2, V, (2, N), generator=made, device="cuda")
    seen = torch.ones(2, N, dtype=torch.long, device="cuda")
    if padded:
        seen[1, :70] = 0
    given = inputs(model, seen if padded else None, ids)
    counts = torch.ones_like(seen) if model.config.is_encoder_decoder else seen
    return model, given, counts.bool()


def found(model: Any, given: dict[str, Any], counts: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    logits = model(**given).logits[counts]
    logits.float().square().mean().backward()
    grads = {n: p.grad.float() for n, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach().float(), **grads}


def off(x: dict[str, Tensor], y: dict[str, Tensor]) -> float:
    """Of logits and gradients; all of the latter together."""
    assert x.keys() == y.keys()
    keys = [key for key in x if key != "logits"]
    gap = sum(float((x[key] - y[key]).norm()) ** 2 for key in keys) ** 0.5
    size = sum(float(y[key].norm()) ** 2 for key in keys) ** 0.5
    one = float((x["logits"] - y["logits"]).norm() / y["logits"].norm())
    return max(one, gap / size)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", list(CASES))
def test_logits_and_gradients(name: str, padded: bool) -> None:
    """bf16 no further from float32 than transformers is; float32 to the kernels' error."""
    model, given, counts = moved(name, padded)
    exact = found(model, given, counts)
    everyformer.speed_up(model)
    assert off(found(model, given, counts), exact) < 5e-3  # TF32 products
    everyformer.restore(model)
    model.to(torch.bfloat16)
    theirs = off(found(model, given, counts), exact)
    everyformer.speed_up(model)
    assert off(found(model, given, counts), exact) < 1.5 * theirs + 1e-3


@pytest.mark.parametrize("name", ["T5", "Bloom", "GPT2", "Llama", "FalconRW"])
def test_tokens(name: str) -> None:
    library = pytest.importorskip("transformers")
    model = small(name, library).cuda()
    ids = torch.randint(2, V, (2, 40), device="cuda")
    seen = torch.ones_like(ids)
    seen[1, :9] = 0
    asked = {"attention_mask": seen, "max_new_tokens": 64, "do_sample": False}
    everyformer.speed_up(model)
    cached = model.generate(ids, **asked)
    whole = model.generate(ids, use_cache=False, **asked)
    agree = (cached == whole).float().mean()
    assert agree > 0.9  # a tie that rounding decides changes all that follows


@pytest.mark.parametrize("name", ["T5", "Bloom"])
def test_compiled(name: str) -> None:
    torch.compiler.reset()
    model, given, counts = moved(name, padded=False)
    model.to(torch.bfloat16)
    everyformer.speed_up(model)
    plain = found(model, given | {"use_cache": False}, counts)
    compiled: Any = torch.compile(model)
    model.zero_grad()
    logits = compiled(**given, use_cache=False).logits[counts]
    logits.float().square().mean().backward()
    gap = (logits.detach().float() - plain["logits"]).norm() / plain["logits"].norm()
    assert float(gap) < 0.05
