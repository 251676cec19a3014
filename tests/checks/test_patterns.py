"""From the assumptions to universality: Theorem 1, the star, or a pair that never meets."""

import numpy as np
import pytest

import everyformer as ef
from everyformer import patterns as ps
from everyformer.checks.patterns import check_pattern
from everyformer.patterns.probability_maps import sparsemax, sum_normalisation
from everyformer.patterns.star_graph import star_centre
from everyformer.verdict import Verdict


def test_both_assumptions_prove() -> None:
    report = ef.check(ps.strided(16, 4))
    assert report.verdict is Verdict.PROVED
    assert report.lp.source == "Yun et al. 2020b, Theorem 1"
    assert report.sup.verdict is Verdict.UNKNOWN
    assert [finding.code for finding in report.findings] == ["A1.1", "A1.2", "A1.3", "A2"]
    assert str(report).startswith("strided is universal in L^p: PROVED (n = 16)")
    assert report.to_json()["assumption_1"]["s"] == 3


def test_a_pair_that_never_meets_refutes_in_both_distances() -> None:
    report = check_pattern(ps.fixed(14, 4), sum_normalisation)
    assert report.lp.verdict is report.sup.verdict is Verdict.REFUTED
    assert report.lp.target == "f(X)_1 = x_13"
    assert report.lp.lower_bound == pytest.approx(12**-0.5)
    assert report.sup.lower_bound == 0.5
    assert "repaired=true" in report.lp.way_out
    assert "repaired" not in ef.check(ps.causal(3)).lp.way_out


def test_a_map_that_fails_leaves_the_theorem_silent() -> None:
    report = check_pattern(ps.ring(5), sum_normalisation)
    assert report.verdict is Verdict.UNKNOWN
    assert "Assumption 2 fails for sum-normalisation" in report.lp.reason
    unknown = check_pattern(ps.ring(5), lambda v: sparsemax(v))
    assert "Assumption 2 is not known" in unknown.lp.reason
    assert check_pattern(ps.ring(5), sparsemax).verdict is Verdict.PROVED


def test_the_bare_star_is_universal_by_another_theorem() -> None:
    report = ef.check(ps.bare_star(6))
    assert report.verdict is Verdict.UNKNOWN
    assert "universal by another theorem" in report.lp.reason
    assert report.assumption_1.verdict is Verdict.UNKNOWN
    assert report.lp.source == "Zaheer et al. 2020, Theorem 1"
    for condition in ("other 5 tokens", "added token", "1 < p < inf", "centre 1 (1-based)"):
        assert condition in report.lp.reason
    assert "another theorem" not in check_pattern(ps.bare_star(6), sparsemax).lp.reason


def test_patterns_that_no_theorem_covers() -> None:
    no_loops = ef.check(ps.from_masks(np.roll(np.eye(5, dtype=bool), 1, axis=1)))
    assert no_loops.verdict is Verdict.UNKNOWN
    assert "Assumption 1.1 fails; no theorem covers it" in no_loops.lp.reason


def test_stars_within_patterns() -> None:
    assert star_centre(ps.bare_star(5)) == 0
    assert star_centre(ps.star(9)) == 8
    assert star_centre(ps.cycle(ps.ring(5), ps.bare_star(5))) == 0
    assert star_centre(ps.ring(5)) is None
    hub = ps.bare_star(5).parts[0].mask()
    for missing in ((0, 3), (3, 0), (3, 3)):
        broken = hub.copy()
        broken[missing] = False
        assert star_centre(ps.from_masks(broken)) is None
    without_own_loop = hub.copy()
    without_own_loop[0, 0] = False
    assert star_centre(ps.from_masks(without_own_loop)) == 0
