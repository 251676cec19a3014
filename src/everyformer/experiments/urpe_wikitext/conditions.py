"""How a result of `urpe-wikitext` was made: no perplexity means anything without."""

from collections.abc import Mapping
from typing import Any

TEXTS = {
    "enwiki-words": "enwiki-2015 (WikiText-2 vocabulary)",
    "enwiki-words-12m": "enwiki-2015, its first 12M words (WikiText-2 vocabulary)",
    "wikitext-2": "WikiText-2",
    "wikitext-103": "WikiText-103",
    "excerpt-words": "a made text",
}
"""As tables name them: stand-ins have names of their own."""


def conditions(result: Mapping[str, Any]) -> str:
    """Sizes, text, training and reading of a result, in one line."""
    settings = result["settings"]
    model, task, train = settings["model"], settings["task"], settings["train"]
    n, words = task["length"], train["steps"] * train["batch"] * task["length"]
    reading = [_read(one) for one in task["readings"]]
    cut = "" if task["most"] is None else f", the first {task['most']:,} words"
    return (
        f"{model['layers']} x {model['dim']}, {model['heads']} heads, dropout "
        f"{model['dropout']:g}; {TEXTS.get(task['pack'], task['pack'])}, {n} words and a "
        f"memory of {model['places']} x {train['batch']}, {train['steps']:,} updates "
        f"({words / 1e6:,.1f}M words), rate {train['lr']:g} (C: x {train['table_lr']:g}), "
        f"{train['precision']}; read in one stream{cut}: {'; '.join(reading)}"
    )


def _read(reading: Mapping[str, Any]) -> str:
    told = f"{reading['name']} with a memory of {reading['places']}"
    if reading["clamp"] is not None:
        told += f", distances up to {reading['clamp']}"
    return told + (", the same for every word" if reading["same_length"] else "")
