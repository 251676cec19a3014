"""How a result of `sparse-lm` was made, and what its causal patterns are."""

from collections.abc import Mapping, Sequence
from typing import Any

from everyformer.experiments.mixers_bert.conditions import windows_told

CAUSAL_STAR = (
    "Under a causal mask nobody hears the relay of STAR, its last token: causal `star` is "
    "a sliding window (and the row of token n). Its rank says that local attention is "
    "good, not that relays are. `star-first`, which the paper does not have, puts the "
    "relay at the first token, which everybody hears and which hears nobody: under a "
    "causal mask one token cannot relay."
)


def conditions(result: Mapping[str, Any]) -> str:
    """Sizes, text and training of a result, in one line."""
    settings = result["settings"]
    model, task, train = settings["model"], settings["task"], settings["train"]
    words = "" if model["words_counted"] else "; words estimated from the whole source"
    return (
        f"{model['layers']} x {model['dim']}, {model['heads']} heads, "
        f"{model['norm']}-norm; {windows_told(task, train)}; a context of "
        f"{task['contexts']['nats']} tokens{words}"
    )


def summary(results: Sequence[Mapping[str, Any]], size: str) -> str:
    """What the causal star is, where it was run."""
    arms = {result["labels"]["arm"] for result in results}
    return CAUSAL_STAR if arms & {"star", "star-first"} else ""
