"""The convolution beside its peers: all compute the same; nothing wrong is timed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from everyformer.bench import mixers
from everyformer.errors import EveryformerError


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("length", [4, 7, 20])
def test_contenders_compute_the_same(length: int) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(2, 9, 32, generator=random, dtype=torch.float64)
    filters = torch.randn(16, length, generator=random, dtype=torch.float64)
    wanted = mixers.light_convolution(x, filters)
    for name, function in mixers.CONTENDERS.items():
        assert (function(x, filters) - wanted).abs().max() < 1e-12, name


def test_a_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixers, "DIM", 128)
    report = mixers.run(quick=True)
    assert {row["name"] for row in report["rows"]} == set(mixers.CONTENDERS)
    assert all(row["both_ms"] > 0 for row in report["rows"])
    assert all(row["bit_identical"] for row in report["gate"])
    assert mixers.table(report).row_count == len(report["rows"]) == 12
    mixers.picture(report, tmp_path / "mixers.png")
    assert (tmp_path / "mixers.png").stat().st_size > 5_000


def test_nothing_wrong_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = mixers.light_convolution

    def shifted(x: Tensor, filters: Tensor) -> Tensor:
        return right(x, filters.roll(1, 1))

    monkeypatch.setattr(mixers, "light_convolution", shifted)
    with pytest.raises(EveryformerError, match="fails its gate and is not timed"):
        mixers.gate("cpu")


def test_a_slower_row_is_said() -> None:
    times = {"ours": 1.0, mixers.CONV1D: 2.0, mixers.CONV1D_GROUPS: 3.0}
    rows = [
        {"name": name, "n": 1, "batch": 1, "length": 1, "glu": False}
        | {"forward_ms": ms, "both_ms": ms}
        for name, ms in times.items()
    ]
    assert mixers.not_slower(rows)
    rows[1]["forward_ms"] = 0.5
    assert not mixers.not_slower(rows)
