"""A run with `torch.compile`; in the second call of the tests, without the shape hook."""

from typing import Any

import pytest
from tests.train.runs import losses, tiny_run

pytestmark = [
    pytest.mark.compile,
    # torch.compile asks non-leaf tensors for their gradients, and warns of itself.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_compiled_blocks_give_the_same_losses(precision: str) -> None:
    """The code that inductor makes of forward and backward."""
    more: dict[str, Any] = {"precision": precision, "steps": 6, "warmup": 1}
    plain, compiled = (
        losses(tiny_run(compile=compile, **more).curve) for compile in (False, True)
    )
    assert compiled == pytest.approx(plain, abs=1e-5 if precision == "fp32" else 2e-2)
