"""How a result of `sparse-glue` was made."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from everyformer.data.glue_metrics import METRICS
from everyformer.experiments.curves import having
from everyformer.experiments.experiment import markdown, number
from everyformer.experiments.mixers_bert.conditions import windows_told

ARMS = (
    "The relay of `star` is the first token, [CLS]. `random` has as many connections among "
    "the first m tokens as the union of strided, for every m: both leave short sequences "
    "equally many."
)


def conditions(result: Mapping[str, Any]) -> str:
    """Sizes, data and training of a result, in one line."""
    settings = result["settings"]
    model, task, train = settings["model"], settings["task"], settings["train"]
    rate = f"rate {train['lr']:g}"
    if task["task"] == "masked windows":
        sizes = f"{model['layers']} x {model['dim']}, {model['norm']}-norm"
        return f"{sizes}; {windows_told(task, train)}"
    metric = METRICS[task["task"]][0] if task["task"] in METRICS else "accuracy"
    return (
        f"{metric}; {task['pack']}, at most {task['lengths'][-1]} tokens; batch "
        f"{train['batch']}, {train['steps']:,} updates, {rate}"
    )


def summary(results: Sequence[Mapping[str, Any]], size: str) -> str:
    """Means of all fine-tunings of an arm on each task, and what star and random are."""
    done = [r for r in results if r["complete"] and r["labels"]["task"] != "mlm"]
    tasks, arms = (
        list(dict.fromkeys(r["labels"][name] for r in done)) for name in ("task", "arm")
    )
    if not done:
        return ""
    rows: list[list[str]] = []
    for arm in arms:
        each = [
            [r["value_sampled"] for r in having(done, task=task, arm=arm)] for task in tasks
        ]
        rows.append([arm, *map(_mean, each)])
    names = [f"{task}, {METRICS[task][0] if task in METRICS else 'accuracy'}" for task in
             tasks]  # fmt: skip
    told = "Means over fine-tunings, with their standard error and number:"
    return "\n\n".join([told, markdown(["arm", *names], rows), ARMS])


def _mean(values: Sequence[float]) -> str:
    if len(values) < 2:
        return number(values[0]) if values else ""
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{number(statistics.fmean(values))} ± {error:.1g} ({len(values)})"
