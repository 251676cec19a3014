"""A tiny Transformer-XL beside plain eager code, and that nothing wrong is timed."""

import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console

from everyformer.bench import xl
from everyformer.bench.xl_peer import PeerModel
from everyformer.errors import EveryformerError


def test_all_contenders_do_the_same_work() -> None:
    report = xl.run()
    ours, gained, peer = report["rows"]
    for row in report["rows"]:
        assert row["error_sampled"] < 1e-12
    ratio = peer["update_ms"] / ours["update_ms"]
    assert peer["ratio_sampled"] == pytest.approx(ratio)
    assert "ratio_sampled" not in gained
    told = io.StringIO()
    Console(file=told, width=120).print(xl.table(report))
    assert f"{ratio:.2f}" in told.getvalue()


@pytest.mark.parametrize("wrong", ["forgets", "nan"])
def test_a_peer_that_computes_something_else_is_not_timed(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory counts: a peer that forgets it has other losses in the second segment."""
    kept = PeerModel.forward

    def changed(self: PeerModel, data: Any, target: Any, mems: Any) -> Any:
        if wrong == "forgets":
            return kept(self, data, target, None)
        losses, mems = kept(self, data, target, mems)
        return losses * float("nan"), mems

    monkeypatch.setattr(PeerModel, "forward", changed)
    with pytest.raises(EveryformerError, match="fails its gate"):
        xl.gate(xl.ON_CPU[0], torch.device("cpu"))


def test_sizes_are_those_of_the_released_model() -> None:
    base = replace(xl.BASE, vocab_size=267_735, cutoffs=(20_000, 40_000, 200_000))
    model = xl.TransformerXLModel(base, device="meta")
    assert sum(p.numel() for p in model.parameters()) == 151_107_538
    with torch.device("meta"):
        peer = PeerModel(xl.BASE, 150)
    ours = xl.TransformerXLModel(xl.BASE, device="meta")
    counts = [sum(p.numel() for p in one.parameters()) for one in (ours, peer)]
    assert counts[0] == counts[1]
