"""Modules that other people wrote, built from configs: what `check` says of each."""

import pytest
import torch
from tests.checks.third_party import CODES, PAGE, ROWS, WORDS, D, InBlocks, N, page
from torch import nn

from everyformer import patterns
from everyformer.checks.calling import InPlaceOfEmbedding
from everyformer.checks.replay import replay
from everyformer.checks.report import check
from everyformer.checks.subject import Subject
from everyformer.layers import SparseAttention, add_urpe
from everyformer.verdict import Verdict

PROVED, REFUTED, UNKNOWN = Verdict.PROVED, Verdict.REFUTED, Verdict.UNKNOWN

ALIKE = {
    "timm block", "RoBERTa", "ALBERT", "ELECTRA", "DistilBERT", "ViT layer", "T5 block",
    "GPT-2 block", "GPT-J", "GPT-NeoX", "GPT, the first", "OPT", "MPT", "Qwen2", "Gemma",
    "Phi", "x-transformers block, rotary, causal",
}  # fmt: skip
"""Built of the same parts as another row, and with its verdicts or those of a third."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in ROWS],
)
def test_verdicts(name: str) -> None:
    """As the page says; and what is REFUTED by an input is violated by it once more."""
    row = ROWS[name]
    torch.manual_seed(0)
    module, settings = row.make(), dict(row.settings)
    if "embedding" in settings:
        module = InPlaceOfEmbedding(module, settings.pop("embedding"))
    subject = Subject.of(module, N, D)
    report = check(subject, trials=2, **settings)
    answers = (report.lp, report.sup, *(report[code] for code in CODES))
    found = [str(answer.verdict) for answer in answers]
    assert found == [WORDS[letter] for letter in row.verdicts], str(report)
    for finding in report.findings:
        example = finding.counterexample
        assert example is None or replay(subject, example).still_violates, finding.code


def test_the_page() -> None:
    """`python -m tests.checks.third_party` writes it."""
    assert PAGE.read_text() == page()
    assert len(ROWS) >= 45
    assert ROWS.keys() >= ALIKE
    assert sum(row.decided for row in ROWS.values()) >= 35


@pytest.mark.parametrize("name", ["GPT-2, eager", "nanoGPT block, filled with -1e9"])
def test_a_finite_mask_is_named(name: str) -> None:
    """It is not the mask that it is meant to be, and proves nothing."""
    report = check(ROWS[name].make(), N, D, trials=2)
    for reason in (report.lp.reason, report["EF006"].reason, report["EF009"].reason):
        assert "the mask is finite" in reason
        assert "with -inf in its place" in reason


def test_urpe_is_a_way_out() -> None:
    """The encoder layer of torch, with a gain after its softmax: equal tokens part."""
    layer = nn.TransformerEncoderLayer(D, 2, 16, batch_first=True)
    add_urpe(layer, max_len=N)
    report = check(layer, N, D, trials=3)
    assert report["EF003"].verdict is REFUTED
    assert report["EF002"].verdict is not PROVED
    assert report.verdict is UNKNOWN


def test_a_mask_that_cuts_the_sequence() -> None:
    """The pair that never meets refutes L^p; a mask that joins the blocks does not."""
    report = check(InBlocks(), N, D)
    assert report.lp.verdict is REFUTED
    assert report.lp.reason == "token 4 never hears token 1 (1-based), whatever the depth"
    assert report.lp.target == "f(X)_4 = x_1"
    assert report.lp.lower_bound == 12**-0.5
    assert report.sup.lower_bound == 0.5
    assert report["EF006"].verdict is REFUTED
    joined = check(InBlocks(shift=1), N, D)
    assert joined["EF009"].verdict is REFUTED
    assert joined.lp.verdict is UNKNOWN


def test_a_layer_is_refuted_as_its_pattern_is() -> None:
    pattern = patterns.fixed(10, 4)  # whose tokens 9 and 10 nobody before them hears
    layer = SparseAttention(D, 2, pattern, configuration="union")
    assert check(pattern).lp.verdict is REFUTED
    assert check(layer, 10, D).lp.verdict is REFUTED
    whole = SparseAttention(D, 2, patterns.fixed(12, 4), configuration="union")
    assert check(whole, 12, D).lp.verdict is UNKNOWN
