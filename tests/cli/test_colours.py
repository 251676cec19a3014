"""Verdicts have the colour of the news that they are, on a terminal alone."""

import re

import pytest

import everyformer as ef
from everyformer.checks.subject import Subject
from everyformer.cli import tables
from everyformer.cli.report_texts import answers, findings_table
from everyformer.model.attention_spec import AttentionSpec

ANY_COLOUR = r"\x1b\[[0-9;]*3[0-7]m"


def shown(
    patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **terminal: str
) -> str:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        patch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", "COLUMNS": "92", **terminal}.items():
        patch.setenv(name, value)
    report = ef.check(Subject("t5", None, AttentionSpec("t5", bias=True), 4, 4))
    told = answers(report.subject, report.sizes, report.lp, report.sup)
    tables.show(*told, findings_table(report.findings))
    tables.show(tables.claimed("PROVED, CONDITIONAL on: d_2(REFUTED, g) <= 1"))
    tables.show(tables.claimed("PROVEDLY not a verdict"))
    return capsys.readouterr().out


def test_a_terminal_sees_good_and_bad_news(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = shown(monkeypatch, capsys, FORCE_COLOR="1")
    green, red, yellow = "\x1b[1;32m", "\x1b[1;31m", "\x1b[1;33m"
    assert f"in the sup norm: {red}REFUTED" in seen
    assert f"in L^p: {yellow}UNKNOWN" in seen
    lines = {line.split()[0]: line for line in seen.splitlines() if line.startswith("EF")}
    assert f"{green}REFUTED" in lines["EF001"]  # an obstacle that is not there
    assert f"{red}PROVED" in lines["EF003"]  # an obstacle that is
    assert f"{green}PROVED" in lines["EF004"]  # a condition that holds
    assert not re.search(ANY_COLOUR, lines["EF002"])  # neither
    assert not re.search(ANY_COLOUR, lines["EF005"])  # a theorem does not apply
    assert f"{green}PROVED\x1b[0m{yellow}, CONDITIONAL\x1b[0m on: d_2(REFUTED, g)" in seen
    assert "\nPROVEDLY not" in seen


def test_pipes_and_no_color_do_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "\x1b" not in shown(monkeypatch, capsys)
    plain = shown(monkeypatch, capsys, FORCE_COLOR="1", NO_COLOR="1")
    assert not re.search(ANY_COLOUR, plain)
