"""How a result of `mixers-bert` was made: no number means anything without."""

from collections.abc import Mapping
from typing import Any


def conditions(result: Mapping[str, Any]) -> str:
    """Sizes, data and training of a result, in one line."""
    settings = result["settings"]
    task, train = settings["task"], settings["train"]
    if task["task"] == "masked windows":
        return f"{_model(settings['model'])}; {windows_told(task, train)}"
    rate = f"batch {train['batch']}, {train['steps']:,} updates, rate {train['lr']:g}"
    if task["task"] == "pairs":
        hidden = ", premises hidden" if task["premise_masked"] else ""
        return f"{task['pack']}, at most {task['lengths'][-1]} tokens{hidden}; {rate}"
    told = f"windows of {task['length']}, step {task['stride']}"
    return f"{task['pack']}, {told}, ambiguous answers {task['ambiguous']}; {rate}"


def _model(model: Mapping[str, Any]) -> str:
    told = f"{model['layers']} x {model['dim']}, {model['norm']}-norm"
    if {"light", "dynamic"} & {*model["mixers"]}:
        told += f", {model['filters']} filters of {model['filter_length']}"
    if "separable" in model["mixers"]:
        told += f", filters of {model['filter_length']}"
    return told


def windows_told(task: Mapping[str, Any], train: Mapping[str, Any]) -> str:
    """Text, windows and updates of a pre-training or a language model."""
    n, batch, steps = task["seq_len"], train["batch"], train["steps"]
    tokens, ending = n * batch * steps, ""
    if task.get("longer") is not None:
        first, length, count = task["longer"]
        tokens = n * batch * first + length * count * max(0, steps - first)
        ending = f", from update {first:,} on {length} x {count}"
    return (
        f"{task['pack']}, n = {n} x {batch}, {steps:,} updates{ending} "
        f"({tokens / 1e6:,.1f}M tokens), rate {train['lr']:g}, {train['precision']}"
    )
