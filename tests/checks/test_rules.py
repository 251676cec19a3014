"""What rules say of specs, of the library's layers, and of modules that lie."""

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules_page import rules_page
from torch import nn

import everyformer as ef
from everyformer.checks.redrawing import redrawn
from everyformer.checks.report import Report, check
from everyformer.checks.rule import judge
from everyformer.checks.rules import RULES, attentive
from everyformer.checks.subject import Subject
from everyformer.errors import InputError
from everyformer.layers.by_name import LAYER_NAMES, attention_by_name
from everyformer.layers.positions import SpecialToken
from everyformer.model.attention_spec import AttentionSpec
from everyformer.verdict import Verdict

PROVED, REFUTED, UNKNOWN = Verdict.PROVED, Verdict.REFUTED, Verdict.UNKNOWN
PAGE = Path(__file__).parents[2] / "docs" / "rules.md"
N, D = 4, 4

FLAGS = [field.name for field in fields(AttentionSpec) if field.type is bool]
SPECS = st.builds(
    AttentionSpec,
    name=st.just("any"),
    relative_to=st.sampled_from(["offset", "graph"]),
    **{flag: st.booleans() for flag in FLAGS},
)


def judged(spec: AttentionSpec, n: int = 5) -> Report:
    return check(Subject("spec", None, spec, n, 4))


def layer(name: str, **kwargs: bool) -> Report:
    module = attention_by_name(name, seq_len=N, embed_dim=D, num_heads=2, **kwargs)
    return check(module, N, D, trials=3)


def test_the_page_of_rules_is_up_to_date() -> None:
    if os.environ.get("EVERYFORMER_SNAPSHOTS") == "write":
        PAGE.write_text(rules_page())
    assert PAGE.read_text() == rules_page()


@given(SPECS, st.integers(2, 40))
@settings(deadline=None)
def test_what_ignores_positions_is_never_proved(spec: AttentionSpec, n: int) -> None:
    report = judged(spec, n)
    if spec.ignores_positions or spec.causal:
        assert report.verdict is REFUTED
    elif n > 2 and spec.relative_to == "offset":
        assert report["EF001"].verdict is REFUTED


@given(SPECS, st.integers(2, 40))
@settings(deadline=None)
def test_what_is_proved_is_never_refuted(spec: AttentionSpec, n: int) -> None:
    report = judged(spec, n)
    if report.lp.verdict is PROVED:
        assert report.sup.verdict is not REFUTED
        assert report["EF003"].verdict is not PROVED
        assert spec.absolute or spec.gain
    bounds = [answer.lower_bound for answer in (report.lp, report.sup)]
    assert all(bound is None or bound > 0 for bound in bounds)


@given(SPECS)
@settings(deadline=None, max_examples=40)
def test_one_more_way_out_never_refutes(spec: AttentionSpec) -> None:
    """Gains and positions only add layers: they never make a verdict worse."""
    order = {REFUTED: 0, UNKNOWN: 1, PROVED: 2}
    for flag in ("gain", "absolute"):
        more = judged(replace(spec, **{flag: True}))
        less = judged(replace(spec, **{flag: False}))
        assert order[more.verdict] >= order[less.verdict], flag


VERDICTS = {
    "none": (REFUTED, REFUTED),
    "ape": (PROVED, UNKNOWN),
    "alibi": (REFUTED, REFUTED),
    "graphormer": (REFUTED, REFUTED),
    "shaw-values": (UNKNOWN, UNKNOWN),
    "urpe": (PROVED, UNKNOWN),
    "t5+urpe": (PROVED, UNKNOWN),
    "alibi+urpe": (UNKNOWN, UNKNOWN),
    "rotary+urpe": (UNKNOWN, UNKNOWN),
    "graphormer+urpe": (REFUTED, REFUTED),
    "xl+urpe": (PROVED, UNKNOWN),
}


@pytest.mark.rows(10)
@pytest.mark.parametrize("name", [*LAYER_NAMES, *(n for n in VERDICTS if "+" in n)])
def test_layers_of_the_library(name: str) -> None:
    report = layer(name)
    lp, sup = VERDICTS.get(name, (UNKNOWN, REFUTED))
    assert (report.lp.verdict, report.sup.verdict) == (lp, sup), str(report)
    spread = report["EF003"].violation_sampled
    assert spread is not None
    if sup is REFUTED and "+" not in name:
        assert spread < 1e-12
        assert report.sup.lower_bound == pytest.approx(0.75**0.5)
    else:
        assert spread > 1e-3
        assert report["EF003"].counterexample is not None
    if lp is REFUTED and name != "none":  # |i - j| alone is known
        assert report["EF010"].verdict is PROVED
        assert report.lp.lower_bound == pytest.approx(0.5**0.5)


@pytest.mark.parametrize("name", ["t5", "urpe", "ape", "shaw-values"])
def test_causal_layers_are_refuted_in_every_distance(name: str) -> None:
    report = layer(name, causal=True)
    assert (report.lp.verdict, report.sup.verdict) == (REFUTED, REFUTED)
    assert report["EF006"].verdict is PROVED
    assert report["EF004"].verdict is REFUTED
    if "urpe" in name:
        assert report["EF005"].verdict is PROVED


def test_missing_biases() -> None:
    report = layer("urpe", bias=False)
    assert report["EF007"].verdict is PROVED
    assert report.sup.verdict is REFUTED
    assert report.sup.lower_bound == 1.0
    assert report.lp.verdict is UNKNOWN


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["none", "t5", "rotary"])
def test_one_special_token_is_a_way_out(name: str, causal: bool) -> None:
    """With an encoding or a causal mask; alone it is none."""
    inner = attention_by_name(name, seq_len=N + 1, embed_dim=D, num_heads=2, causal=causal)
    found = check(SpecialToken(inner, D), N, D)["EF003"]
    assert found.verdict is (PROVED if name == "none" and not causal else REFUTED)


def test_what_mixes_no_tokens_is_refuted_by_its_operations() -> None:
    assert check(nn.Identity(), N, D).lp.reason.startswith("token 2 never hears token 1")


def test_a_black_box_is_never_proved() -> None:
    """Positions in a form that is not followed: measured, not proved."""

    class Box(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = attention_by_name("urpe", seq_len=N, embed_dim=D, num_heads=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    report = check(Box(), N, D)
    assert report.verdict is UNKNOWN
    assert "measured" in report["EF004"].reason
    assert "row sums at least" in report["EF005"].reason
    assert report["EF002"].verdict is REFUTED


def test_the_attentive_form_needs_c_on_the_side_of_the_query() -> None:
    """The trap of Theorem 3 as printed: c on the side of the key cancels."""
    X, u = torch.randn(6, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    ids = X @ u
    key_side = torch.softmax(ids[:, None] * (ids - 3.0)[None, :], dim=-1)
    plain = attentive.attentive_form(X, u, 0.0)
    assert (key_side - plain).abs().max() < 1e-15
    assert (attentive.attentive_form(X, u, 3.0) - plain).abs().max() > 0.1


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 64])
def test_row_sums_of_the_position_head(n: int) -> None:
    """By a layer with hand-set weights, not by the formula."""
    for causal in (False, True):
        module = attention_by_name(
            "urpe", seq_len=max(n, 2), embed_dim=D, num_heads=2, causal=causal
        ).double()
        with torch.no_grad():
            for weight in module.parameters():
                weight.zero_()
            table: Any = module.get_parameter("gain.table")
            middle = max(n, 2) - 1
            if causal:
                table[:, middle] = 1
            else:
                table[:, middle + 1 :] = 1
        x = torch.randn(1, n, D, dtype=torch.float64)
        _, A = module(x, need_weights=True)
        i = np.arange(1, n + 1)
        wanted = 1 / i if causal else (i - 1) / n
        assert np.allclose(A.sum(-1).detach().numpy(), wanted, rtol=0, atol=1e-12)


def test_sizes_and_modules_that_cannot_be_checked() -> None:
    with pytest.raises(InputError, match="n >= 2"):
        check(nn.Identity(), 1, 4)
    with pytest.raises(InputError, match="give both"):
        check(nn.Identity())
    with pytest.raises(InputError, match="cannot be run on tokens"):
        check(nn.Linear(3, 3), 4, 5)
    with pytest.raises(InputError, match="does not map sequences"):
        check(nn.Linear(4, 3), 4, 4)
    with pytest.raises(InputError, match="trials=0 is not an integer >= 1"):
        check(nn.Identity(), 4, 4, trials=0)
    with pytest.raises(KeyError):
        _ = check(nn.Identity(), 4, 4)["EF999"]


def test_the_public_name() -> None:
    assert ef.check is check


def test_a_counterexample_beyond_doubt_ends_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights are drawn once, to find its layout: the search needs no others."""
    seeds: list[int] = []

    def noted(module: nn.Module, seed: int) -> nn.Module:
        seeds.append(seed)
        return redrawn(module, seed)

    monkeypatch.setattr("everyformer.checks.subject.redrawn", noted)
    module = nn.LSTM(D, D, batch_first=True)
    found = judge(RULES[0], Subject.of(module, N, D), 4, 0)
    assert found.counterexample is not None
    assert found.counterexample.seed is None
    assert seeds == [0]
