"""On a GPU: every dtype against float64, twice the same bits, and the layer compiled."""

import pytest
import torch
from tests.ops.cases import TOLERANCE
from tests.ops.test_dynamic_convolution import made, results
from tests.ops.test_light_convolution import Shape, gap

from everyformer.layers import DynamicConvolution
from everyformer.ops.dynamic_convolution import launch, reference

pytestmark = pytest.mark.gpu

SHAPES: list[Shape] = [
    (2, 1, 96, 2, 128),
    (3, 64, 96, 2, 31),
    (2, 300, 768, 16, 128),
    (1, 257, 768, 4, 255),
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


def test_the_layer_in_autocast_and_compiled() -> None:
    layer = DynamicConvolution(768).cuda()
    x = torch.randn(2, 100, 768, device="cuda")
    exact = layer.double()(x.double())
    layer.float()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for called in (layer, torch.compile(layer, fullgraph=True)):
            out = called(x)
            assert out.dtype == torch.bfloat16
            assert (out.double() - exact).abs().max() <= 0.05 * exact.abs().max()
