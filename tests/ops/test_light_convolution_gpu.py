"""On a GPU: every dtype against float64, the layer, and the limits of memory."""

import pytest
import torch
from tests.ops.cases import TOLERANCE
from tests.ops.test_light_convolution import Shape, gap, made, results
from torch import Tensor

from everyformer.bench.mixers import gate
from everyformer.layers import LightConvolution
from everyformer.ops import light_convolution
from everyformer.ops.light_convolution import launch, reference

pytestmark = pytest.mark.gpu

SHAPES: list[Shape] = [
    (2, 1, 96, 2, 128),
    (3, 64, 96, 2, 31),
    (2, 300, 768, 16, 128),
    (2, 257, 768, 16, 255),
    (1, 1000, 72, 3, 127),
    (5, 129, 200, 8, 64),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_gradients(shape: Shape, dtype: torch.dtype) -> None:
    x, filters, grad = (t.cuda() for t in made(shape, dtype))
    exact = results(reference, x.double(), filters.double(), grad.double())
    found, again = (results(launch, x, filters, grad) for _ in range(2))
    assert gap(found, exact) <= TOLERANCE[dtype]
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


def test_the_gate_of_the_benchmark() -> None:
    assert len(gate("cuda")) == 18


@pytest.mark.parametrize("group", [1, 15, 48])
def test_autograd_by_every_path(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    x, filters, grad = (t.cuda() for t in made((2, 70, 4 * group, 4, 9), torch.float32))
    leaves = [x.requires_grad_(), filters.requires_grad_()]
    out = light_convolution(*leaves)
    found = [out.detach(), *torch.autograd.grad(out, leaves, grad)]
    exact = results(
        reference, x.detach().double(), filters.detach().double(), grad.double()
    )
    assert gap(found, exact) <= TOLERANCE[torch.float32]


def test_strides_are_respected() -> None:
    x, filters, grad = (t.cuda() for t in made((2, 70, 96, 2, 9), torch.float32))
    wide = torch.zeros(2, 140, 192, device="cuda")
    wide[:, ::2, :96] = x
    turned = grad.mT.contiguous().mT
    exact = results(reference, x.double(), filters.double(), grad.double())
    assert gap(results(launch, wide[:, ::2, :96], filters, turned), exact) <= 2e-5


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
def test_the_layer_in_autocast_and_compiled() -> None:
    torch.manual_seed(0)
    layer = LightConvolution(768).cuda()
    x = torch.randn(2, 300, 768, device="cuda")
    compiled = torch.compile(layer, fullgraph=True)
    plain = layer(x)
    for module in (layer, compiled):
        layer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out: Tensor = module(x)
        assert out.dtype == torch.bfloat16
        assert (out - plain).abs().max() <= 0.03 * plain.abs().max()
        out.float().square().sum().backward()
        assert all(
            p.grad is not None and p.grad.isfinite().all() for p in layer.parameters()
        )
