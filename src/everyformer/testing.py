"""Assertions about layers, for the test suite of a project that has some.

Such as `assert_universal(OurAttention(64, heads=4), seq_len=16, d_model=64)`.
"""

from collections.abc import Mapping
from typing import Any

from torch import nn

from everyformer.checks.report import Report, check
from everyformer.checks.rules import rule_of
from everyformer.checks.subject import Subject
from everyformer.verdict import Verdict


def assert_universal(
    module: nn.Module | Subject,
    seq_len: int | None = None,
    d_model: int | None = None,
    **settings: Any,
) -> Report:
    """Pass if stacks of a layer are PROVED universal in L^p.

    UNKNOWN does not pass: of a layer that the library did not write, `assert_not_refuted`
    is what can be asked.

    Args:
        module: As for `everyformer.check`.
        seq_len: n.
        d_model: d.
        settings: What else `everyformer.check` takes.

    Raises:
        AssertionError: With the verdict, why, and what would help.

    Example:
        >>> from everyformer.layers.by_name import attention_by_name
        >>> layer = attention_by_name("urpe", seq_len=4, embed_dim=4, num_heads=2)
        >>> assert_universal(layer, 4, 4, trials=2).verdict
        <Verdict.PROVED: 'PROVED'>
    """
    report = check(module, seq_len, d_model, **settings)
    if report.lp.verdict is Verdict.PROVED:
        return report
    hint = ""
    if report.verdict is Verdict.UNKNOWN:
        hint = (
            "\nUNKNOWN is not a failure of the layer. Of layers that are not made of "
            "everyformer.layers, use assert_not_refuted."
        )
    raise AssertionError(f"{_told(report)}{hint}\n\n{report}")


def assert_not_refuted(
    module: nn.Module | Subject,
    seq_len: int | None = None,
    d_model: int | None = None,
    *,
    sup: bool = True,
    **settings: Any,
) -> Report:
    """Pass unless stacks of a layer are REFUTED to be universal.

    Args:
        module: As for `everyformer.check`.
        seq_len: n.
        d_model: d.
        sup: Whether the sup norm counts, too, in which equal tokens that stay equal refute
            a layer.
        settings: What else `everyformer.check` takes.

    Raises:
        AssertionError: With the function that no such network comes near, and ways out.
    """
    report = check(module, seq_len, d_model, **settings)
    answers = (report.lp, report.sup) if sup else (report.lp,)
    if all(one.verdict is not Verdict.REFUTED for one in answers):
        return report
    raise AssertionError(f"{_told(report)}\n\n{report}")


def assert_verdicts(
    module: nn.Module | Subject,
    seq_len: int | None = None,
    d_model: int | None = None,
    *,
    expected: Mapping[str, Verdict | str],
    **settings: Any,
) -> Report:
    """Pass if rules have the verdicts that are expected.

    Args:
        module: As for `everyformer.check`.
        seq_len: n.
        d_model: d.
        expected: Verdicts by codes or names of rules, such as {"EF006": "PROVED"}.
        settings: What else `everyformer.check` takes.

    Raises:
        AssertionError: With each rule that has another verdict, and why.
        InputError: If there is no such rule.

    Example:
        >>> assert_verdicts(nn.Linear(4, 4), 3, 4, expected={"causal": "PROVED"}).sizes
        'n = 3, d = 4'
    """
    wanted = {rule_of(code).code: Verdict(str(one)) for code, one in expected.items()}
    report = check(module, seq_len, d_model, **settings)
    wrong = [
        f"{code} {report[code].name} is {report[code].verdict}, expected {one}: "
        f"{report[code].reason}"
        for code, one in wanted.items()
        if report[code].verdict is not one
    ]
    if wrong:
        raise AssertionError("\n".join([f"{report.subject} ({report.sizes}):", *wrong]))
    return report


def _told(report: Report) -> str:
    lines = [f"{report.subject} ({report.sizes}):"]
    answers = (report.lp, report.sup)
    lines += [f"{one.claim('it')}: {one.verdict}. {one.why}" for one in answers]
    return "\n".join(lines)
