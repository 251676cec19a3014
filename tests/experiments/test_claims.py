"""Rules are applied as the file says: gates, seeds, Holm, choices, flips."""

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everyformer.errors import FileFormatError
from everyformer.experiments.arrays import save_arrays
from everyformer.experiments.claims import judge, read_claims
from everyformer.experiments.scores import Runs, load_scores

EXAMPLES = 400


class Stand:
    """Runs of made-up arms; the score of an example is a number around the arm's."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []
        self.scores: dict[str, dict[str, np.ndarray]] = {}
        self.generator = np.random.default_rng(3)
        self.hard = self.generator.normal(size=EXAMPLES)

    def add(
        self, arm: str, mean: float, *, seeds: int = 3, task: str = "t", noise: float = 0.01
    ) -> "Stand":
        for seed in range(seeds):
            values = mean + 0.1 * self.hard + 0.1 * self.generator.normal(size=EXAMPLES)
            values += noise * self.generator.normal()
            said = {"x": {"mean_sampled": float(values.mean())}}
            self.results.append(
                {
                    "labels": {"task": task, "arm": arm, "seed": seed},
                    "complete": True,
                    "more": {"test": said, "validation": said},
                }
            )
            kept = {"x": values, "clusters": np.arange(EXAMPLES) // 4}
            self.scores[f"{task}/{arm}/{seed}"] = kept
        return self

    def verdicts(self, *claims: Mapping[str, Any], **more: Any) -> list[str]:
        stored = {"label": "arm", "gates": [], "chosen": [], "claims": claims} | more
        found = judge(read_claims(stored, "here"), self.results, self.scores, "reduced")
        self.found = found
        return [judgement.verdict for judgement in found]


def claim(*comparisons: tuple[str, str], **more: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": "C", "text": "a is best", "source": "nowhere", "cell": {"task": "t"},
        "metric": "x", "direction": "higher", "comparisons": comparisons,
        "clusters": "fours", "gates": [], "sizes": ["reduced"], "orders": [],
    }  # fmt: skip
    return entry | more


GATE = {
    "id": "G", "text": "a reaches 0.5", "cell": {"task": "t"}, "arm": "a", "metric": "x",
    "at_least": 0.5,
}  # fmt: skip


def test_the_verdicts() -> None:
    stand = Stand().add("a", 1.0).add("b", 0.5).add("c", 0.0).add("d", 0.001)
    assert stand.verdicts(claim(("a", "b"))) == ["holds"]
    assert stand.verdicts(claim(("b", "a"))) == ["contradicted"]
    assert stand.verdicts(claim(("c", "d"))) == ["undecided"]
    (told,) = stand.found
    assert told.least_effect is not None
    assert 0.001 < told.least_effect < 0.2
    assert stand.verdicts(claim(("b", "a"), direction="lower")) == ["holds"]
    assert stand.verdicts(claim(("a", "b"), sizes=["paper"])) == []


def test_all_comparisons_must_hold_and_one_reversed_contradicts() -> None:
    stand = Stand().add("a", 1.0).add("b", 0.5).add("c", 0.0).add("d", 0.001)
    assert stand.verdicts(claim(("a", "b"), ("b", "c"))) == ["holds"]
    assert stand.verdicts(claim(("a", "b"), ("c", "d"))) == ["undecided"]
    assert stand.verdicts(claim(("a", "b"), ("c", "b"))) == ["contradicted"]


def test_gates_from_above_and_of_quotients() -> None:
    """An error that must be small, and one that must grow against another."""
    stand = Stand().add("a", 2.0).add("b", 1.0)
    for result in stand.results:
        mean = result["more"]["test"]["x"]["mean_sampled"]
        result["more"]["test"]["y"] = {"mean_sampled": 1.5 * mean}
    gated = claim(("a", "b"), gates=["G"])
    most = {key: value for key, value in GATE.items() if key != "at_least"}
    for limit, verdict in ((2.2, "holds"), (1.9, "not informative")):
        assert stand.verdicts(gated, gates=[most | {"at_most": limit}]) == [verdict]
    grown = GATE | {"metric": "y", "relative_to": "x"}
    for limit, verdict in ((1.4, "holds"), (1.6, "not informative")):
        assert stand.verdicts(gated, gates=[grown | {"at_least": limit}]) == [verdict]
    with pytest.raises(FileFormatError, match="one of at_least"):
        stand.verdicts(gated, gates=[most])


def test_an_effect_smaller_than_its_claim_is_said_to_be_so() -> None:
    """10 % of the second's mean; 50 and 4 % are seen, 0 is not, -20 % is the other way."""
    for mean, verdict in (
        (0.5, "holds"), (0.96, "smaller than claimed"), (1.0, "undecided"),
        (1.2, "contradicted"),
    ):  # fmt: skip
        stand = Stand().add("a", mean, noise=0.001).add("b", 1.0, noise=0.001)
        least = claim(("a", "b"), direction="lower", least_relative=0.1)
        assert stand.verdicts(least) == [verdict]
        told = any("and 10% is claimed" in note for note in stand.found[0].notes)
        assert told == (mean > 0.9)


def test_a_shut_gate_makes_a_claim_not_informative() -> None:
    stand = Stand().add("a", 0.6).add("b", 0.1)
    gated = claim(("a", "b"), gates=["G"])
    assert stand.verdicts(gated, gates=[GATE]) == ["holds"]
    shut = GATE | {"at_least": 0.7}
    assert stand.verdicts(gated, gates=[shut]) == ["not informative"]
    assert stand.found[0].notes[0].startswith("G (a reaches 0.5): it reached 0.")
    elsewhere = GATE | {"arm": "never run"}
    assert stand.verdicts(gated, gates=[elsewhere]) == ["not informative"]
    one_seed = Stand().add("a", 0.6).add("a", 0.2, seeds=1).add("b", 0.1)
    assert one_seed.verdicts(gated, gates=[GATE]) == ["not informative"], "every seed"


def test_fewer_than_three_seeds_are_drawn() -> None:
    stand = Stand().add("a", 1.0).add("b", 0.5, seeds=2)
    assert stand.verdicts(claim(("a", "b"))) == ["drawn, 2 seeds"]
    (told,) = stand.found
    assert told.p is None
    assert told.compared[0].found is not None
    assert told.compared[0].found.low_sampled > 0.4
    assert stand.verdicts(claim(("a", "z"))) == ["not run"]
    assert stand.found[0].notes == ("missing: t/z",)
    assert stand.verdicts(claim(("a", "z"), ("b", "z"), ("a", "y"))) == ["not run"]
    assert stand.found[0].notes == ("missing: t/z", "missing: t/y"), "each is told once"


def test_holm_counts_all_claims_of_the_size() -> None:
    """One p near 0.03 is enough alone, and not among two claims whose runs are missing."""
    for seed in range(40):
        stand = Stand()
        stand.generator = np.random.default_rng(seed)
        stand.add("a", 0.05, noise=0.02).add("b", 0.0, noise=0.02)
        (alone,) = stand.verdicts(claim(("a", "b")))
        p = stand.found[0].p
        if alone == "holds" and p is not None and 0.02 < p < 0.05:
            break
    else:
        pytest.fail("no draw of the noise fits this test")
    assert stand.verdicts(claim(("a", "b")), *(claim(("a", "z")),) * 2)[0] == "undecided"
    assert stand.found[0].p == pytest.approx(3 * p)


def test_an_arm_is_chosen_on_the_validation_set() -> None:
    stand = Stand().add("a", 1.0).add("j1", 1.5, task="v").add("j2", 1.4, task="v")
    stand.add("j1", 0.2).add("j2", 2.0)
    choice = {
        "name": "best", "of": ["j1", "j2"], "cell": {"task": "v"}, "metric": "x",
        "direction": "higher",
    }  # fmt: skip
    assert stand.verdicts(claim(("best", "a")), chosen=[choice]) == ["contradicted"]
    assert stand.found[0].compared[0].better == "j1", "though j2 is better in the test"
    missing = choice | {"of": ["j1", "j3"]}
    assert stand.verdicts(claim(("best", "a")), chosen=[missing]) == ["not run"]


def test_an_order_that_flips_at_another_rate_is_undecided() -> None:
    stand = Stand().add("a", 1.0).add("b", 0.5)
    with_rate = claim(("a", "b"), orders=[{"task": "fast"}])
    assert stand.verdicts(with_rate) == ["holds"]
    stand.add("a", 0.1, task="fast", seeds=1).add("b", 0.5, task="fast", seeds=1)
    assert stand.verdicts(with_rate) == ["undecided"]
    assert stand.found[0].notes == ("a and b change places in fast",)


def test_one_run_under_two_names_is_seen() -> None:
    stand = Stand().add("a", 1.0).add("b", 0.5)
    for seed in range(3):
        copied = stand.scores[f"t/b/{seed}"]["x"]
        copied[:8] = stand.scores[f"t/a/{seed}"]["x"][:8]
        stand.results[3 + seed]["more"]["test"]["x"]["mean_sampled"] = copied.mean()
    assert stand.verdicts(claim(("a", "b"))) == ["undecided"]
    assert "is this one run?" in stand.found[0].notes[0]


def test_other_examples_are_not_paired() -> None:
    stand = Stand().add("a", 1.0).add("b", 0.5)
    stand.scores["t/b/1"]["clusters"] = np.arange(EXAMPLES) // 5
    assert stand.verdicts(claim(("a", "b"))) == ["not run"]
    assert "same test examples" in stand.found[0].notes[0]


def test_arms_that_were_trained_differently_are_not_compared() -> None:
    """One arm with a rate of its own, and all others without, would prove anything."""
    stand = Stand().add("a", 1.0).add("b", 0.5)
    for result in stand.results:
        seed, arm = result["labels"]["seed"], result["labels"]["arm"]
        result["settings"] = {
            "model": {"layers": 2, "mixers": [arm] * 2},
            "train": {"lr": 0.1, "seed": seed},
            "task": {"pack_sha256": "f00", "seed": seed},
            "parent": {"name": f"p/{arm}/{seed}", "sha256": arm, "conditions": "c"},
        }
    assert stand.verdicts(claim(("a", "b"))) == ["holds"]
    for part, name in (("train", "lr"), ("task", "pack_sha256"), ("model", "layers"),
                       ("parent", "conditions")):  # fmt: skip
        changed = deepcopy(stand)
        changed.results[4]["settings"][part][name] = "other"
        assert changed.verdicts(claim(("a", "b"))) == ["not run"], (part, name)
        assert "with equal settings" in changed.found[0].notes[0]


def test_runs_that_were_trained_differently_choose_and_flip_nothing() -> None:
    """A choice, a gate by a median and an order at another rate compare arms too."""
    stand = Stand().add("a", 1.0).add("b", 0.5)
    stand.add("a", 0.6, task="v").add("b", 0.7, task="v")
    choice = {
        "name": "best", "of": ["a", "b"], "cell": {"task": "v"}, "metric": "x",
        "direction": "lower",
    }  # fmt: skip
    gate = {key: value for key, value in GATE.items() if key != "at_least"}
    gate |= {"cell": {"task": "v"}}
    gate |= {"at_most_median": {"cell": {"task": "v"}, "arms": ["b"]}}
    chosen = claim(("best", "b"))
    gated = claim(("a", "b"), gates=["G"])
    turned = claim(("a", "b"), orders=[{"task": "v"}])
    wanted = {"lr": ["holds", "holds", "undecided"], "steps": ["not run",
              "not informative", "holds"]}  # fmt: skip
    for name, verdicts in wanted.items():
        for place, result in enumerate(stand.results):
            seed = result["labels"]["seed"]
            result["settings"] = {"train": {"lr": 0.1, "steps": 9, "seed": seed}}
            if name == "steps" and place == len(stand.results) - 1:
                result["settings"]["train"]["steps"] = 4
        found = [
            stand.verdicts(one, chosen=[choice], gates=[gate])[0]
            for one in (chosen, gated, turned)
        ]
        assert found == verdicts


def test_scores_of_another_run_are_refused(tmp_path: Path) -> None:
    stand = Stand().add("a", 1.0).add("b", 0.5)
    path = tmp_path / "r.scores.npz"
    save_arrays(path, stand.scores)
    stand.scores = load_scores(path)
    assert stand.verdicts(claim(("a", "b"))) == ["holds"], "float32 is enough"
    stand.scores["t/b/2"]["x"] = stand.scores["t/b/2"]["x"] + np.float32(0.01)
    with pytest.raises(FileFormatError, match="not of one run"):
        stand.verdicts(claim(("a", "b")))
    assert Runs("arm", stand.results, {}).scored(stand.results[0], "x") is None


def test_damaged_scores_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.scores.npz"
    assert load_scores(path) == {}
    save_arrays(path, Stand().add("a", 1.0).scores)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(FileFormatError, match="Delete it"):
        load_scores(path)
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(FileFormatError, match="Delete it"):
        load_scores(path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"claims": [claim(("a", "b"), direction="up")]},
        {"claims": [claim(("a", "b"), gates=["H"])]},
        {"gates": [GATE | {"at_most": 1}]},
        {"chosen": [{"name": "best"}]},
    ],
)
def test_rules_that_cannot_be_read_are_refused(wrong: dict[str, Any]) -> None:
    stored = {"label": "arm", "gates": [], "chosen": [], "claims": []} | wrong
    with pytest.raises(FileFormatError, match="it needs"):
        read_claims(json.loads(json.dumps(stored)), "here")


def test_a_margin_must_be_exceeded_and_may_depend_on_the_rate() -> None:
    stand = Stand().add("a", 1.0).add("b", 0.7)
    assert stand.verdicts(claim(("a", "b"), margin=0.1)) == ["holds"]
    assert stand.found[0].compared[0].found is not None
    assert 0.15 < stand.found[0].compared[0].found.effect_sampled < 0.25, "beyond it"
    assert stand.verdicts(claim(("a", "b"), margin=0.5)) == ["contradicted"]
    other = {"orders": [{"task": "fast"}], "margin": 0.1}
    words = {"if_flipped": "depends on the rate"}
    stand.add("a", 1.0, task="fast").add("b", 0.97, task="fast")
    assert stand.verdicts(claim(("a", "b"), **other, **words)) == ["depends on the rate"]
    (note,) = stand.found[0].notes
    assert note.startswith("in fast a is not better than b by 0.1: ")
    assert stand.verdicts(claim(("a", "b"), **other)) == ["undecided"]
    slow = {"orders": [{"task": "slow"}], "margin": 0.1}
    stand.add("a", 1.0, task="slow").add("b", 0.5, task="slow")
    assert stand.verdicts(claim(("a", "b"), **slow, **words)) == ["holds"]
    with pytest.raises(FileFormatError, match="needs exactly"):
        stand.verdicts(claim(("a", "b"), leeway=0.1))
    one = Stand().add("a", 1.0, seeds=1).add("b", 0.7, seeds=1)
    one.add("a", 1.0, seeds=1, task="fast").add("b", 0.97, seeds=1, task="fast")
    told = "drawn, 1 seeds: depends on the rate"
    assert one.verdicts(claim(("a", "b"), **other, **words)) == [told]
