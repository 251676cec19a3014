"""The benchmark of sparse attention: gate, peers with the same mask, exponents, files."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from everyformer import patterns
from everyformer.bench import results, sparse
from everyformer.bench.timing import exponent
from everyformer.errors import EveryformerError
from everyformer.patterns import Part, Star


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two patterns, short sequences, one thread."""
    monkeypatch.setattr(sparse, "WIDTH", 16)
    monkeypatch.setattr(sparse, "CPU_HEADS", 1)
    torch.set_num_threads(1)


def test_quick_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {name: sparse.PATTERNS[name] for name in ("window", "fixed")}
    monkeypatch.setattr(sparse, "PATTERNS", kept)
    report = sparse.run(quick=True)
    path = results.write(tmp_path, report["theme"], report)
    read = json.loads(path.read_text())
    assert read["environment"]["date"]
    assert len(read["gate"]) == 8
    assert set(read["exponents"]) == {
        "window, Window", "fixed, Segments", "fixed, Columns", "fixed, Union"
    }  # fmt: skip
    assert [(row["pattern"], row["part"]) for row in read["targets"]] == [
        ("window", "Window"), ("fixed", "Segments"), ("fixed", "Columns"),
        ("fixed", "Union"), ("fixed", "sequential"),
    ]  # fmt: skip
    assert all(row["SDPA"] > 0 for row in read["targets"])
    assert sparse.table(report).row_count == len(read["rows"]) == 9
    sparse.picture(report, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_nothing_wrong_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sparse.sparse_attention

    def wrong(q: Tensor, k: Tensor, v: Tensor, part: Part) -> Tensor:
        """A star whose ring is one neighbour wider."""
        other = Star(part.n, 2) if isinstance(part, Star) else part
        return right(q, k, v, other)

    monkeypatch.setattr(sparse, "sparse_attention", wrong)
    monkeypatch.setattr(sparse, "PATTERNS", {"star": patterns.star})
    with pytest.raises(EveryformerError, match="fails its gate and is not timed"):
        sparse.gate("cpu")


@pytest.mark.parametrize(
    "part",
    [
        *(part for name in sparse.PATTERNS for part in sparse.PATTERNS[name](256).parts),
        patterns.strided(256, 16).union().parts[0],
        patterns.fixed(256, 16).union().parts[0],
    ],
    ids=lambda part: part.kind,
)
def test_flex_attention_gets_the_same_mask(part: Part) -> None:
    """Blocks that are full, blocks that are masked, and the mask within."""
    blocks = sparse.block_mask(part, "cpu")
    mask = torch.tensor(part.mask())
    where = torch.arange(256)
    none = torch.tensor(0)
    seen = blocks.mask_mod(none, none, where[:, None], where[None, :])
    found = torch.zeros_like(mask)
    lists: list[tuple[Any, Any, Tensor]] = [
        (blocks.kv_num_blocks, blocks.kv_indices, seen),
        (blocks.full_kv_num_blocks, blocks.full_kv_indices, torch.ones_like(seen)),
    ]
    for (numbers, indices, kept), row in itertools.product(lists, range(2)):
        for column in indices[0, 0, row, : int(numbers[0, 0, row])].tolist():
            tile = (
                slice(128 * row, 128 * row + 128),
                slice(128 * column, 128 * column + 128),
            )
            assert not found[tile].any()
            found[tile] = kept[tile]
    assert torch.equal(found, mask)


def test_exponents_are_slopes() -> None:
    sizes = [10, 20, 40, 80]
    assert exponent(sizes, [3 * n**1.5 for n in sizes]) == pytest.approx(1.5)
    assert exponent(sizes, [7.0] * 4) == pytest.approx(0.0)
