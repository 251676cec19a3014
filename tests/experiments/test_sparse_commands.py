"""The commands that docs/experiments.md gives for an hour on a GPU do what it says."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from everyformer.experiments.arrays import name_of
from everyformer.experiments.cell import Order
from everyformer.experiments.report import filled, load_report
from everyformer.experiments.sparse_glue.sizes import WIDTHS
from everyformer.experiments.sparse_lm.plan import order as of_language
from everyformer.experiments.sparse_lm.sizes import SCALES
from everyformer.experiments.sparse_translation.plan import order as of_translation
from everyformer.train.config import changed

ROOT = Path(__file__).parents[2]


def commands(name: str) -> str:
    """What the section of an experiment tells bash to do."""
    page = (ROOT / "docs/experiments.md").read_text()
    section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    (found,) = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    return found


@pytest.mark.parametrize(
    ("name", "order"),
    [("sparse-lm", of_language), ("sparse-translation", of_translation)],
)
def test_every_arm_of_the_core_is_run_by_one_process(name: str, order: Order) -> None:
    cells = [name_of(one) for one in order("reduced", [1])]
    ran: list[str] = []
    outs: list[str] = []
    for line in re.findall(r"^run (.*)$", commands(name), re.MULTILINE):
        outs += re.findall(r"--out (\S+)", line)
        only = re.findall(r"--only '(.*?)'", line)
        ran += [one for one in cells if any(fnmatchcase(one, p) for p in only)]
    assert len(outs) == len(set(outs)) >= 3
    core = [one for one in cells if one.partition("/")[0] in ("100", "13")]
    assert sorted(ran) == sorted(core)


def test_every_arm_of_glue_is_run_by_one_process() -> None:
    loops = re.findall(r"for arm in (.*?); do", commands("sparse-glue"))
    assert sorted(" ".join(loops).split()) == sorted(WIDTHS)


def test_more_seeds_of_the_language_models_are_trained_as_the_stored_one() -> None:
    path = ROOT / "experiments/results/sparse-lm_reduced_nvidia-h200.json"
    text = commands("sparse-lm")
    told = {k: int(v) for k, v in re.findall(r"--set (\w+)=(\d+)", text)}
    for result in load_report(path)["results"]:
        settings, seed = filled(result["settings"]), result["labels"]["seed"]
        config = changed(SCALES["reduced"].train, {**told, "seed": seed})
        assert settings["train"] == config.to_json()
        assert f"data pack {settings['task']['pack']} " in text
