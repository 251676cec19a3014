"""Times of a model without and with our operator, on the same inputs."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

PASSES = ("forward", "forward + backward")


@dataclass(frozen=True)
class Measured:
    """Medians, in seconds.

    Attributes:
        before: Of each pass in `PASSES`, as transformers computes it.
        after: Of each pass, on our operator.
    """

    before: tuple[float, float]
    after: tuple[float, float]

    def __str__(self) -> str:
        """A small table."""
        rows = [f"{'':20}{'before':>12}{'after':>12}{'speed-up':>10}"]
        for name, old, new in zip(PASSES, self.before, self.after, strict=True):
            times = f"{old * 1e3:9.2f} ms{new * 1e3:9.2f} ms"
            rows.append(f"{name:20}{times}{old / new:9.2f}x")
        return "\n".join(rows)


def measure(
    model: nn.Module,
    inputs: Mapping[str, Any],
    switch: Callable[[bool], None],
    *,
    repeats: int,
) -> Measured:
    """Both passes before and after; gradients are put back as they were."""
    kept = {name: part.grad for name, part in model.named_parameters()}
    try:
        after = _times(model, inputs, repeats)
        switch(False)
        try:
            before = _times(model, inputs, repeats)
        finally:
            switch(True)
    finally:
        for name, part in model.named_parameters():
            part.grad = kept[name]
    return Measured(before, after)


def _times(
    model: nn.Module, inputs: Mapping[str, Any], repeats: int
) -> tuple[float, float]:
    def forward() -> None:
        with torch.no_grad():
            model(**inputs)

    def both() -> None:
        model.zero_grad(set_to_none=True)
        loss_of(model(**inputs)).backward()

    return _median(forward, repeats), _median(both, repeats)


def loss_of(output: Any) -> Tensor:
    """The loss of a model's output, or the mean square of its first tensor."""
    loss = getattr(output, "loss", None)
    return output[0].float().square().mean() if loss is None else loss


def _median(run: Callable[[], None], repeats: int) -> float:
    run()
    run()
    times: list[float] = []
    for _ in range(repeats):
        _wait()
        start = time.perf_counter()
        run()
        _wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
