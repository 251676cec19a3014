"""How a result of `sparse-translation` was made, and by which BLEU it was scored."""

from collections.abc import Mapping, Sequence
from typing import Any

STAR = (
    "In the decoder `star` is a sliding window: no token before its relay, the last one, "
    "may hear it. In the encoder, where the last token would be padding, the relay is "
    "the first token. `random` has as many connections among the first m tokens as the "
    "union of strided, for every m. Shorter paragraphs are given the first tokens of a "
    "pattern and are denser: see the two columns of pairs."
)


def conditions(result: Mapping[str, Any]) -> str:
    """Sizes, texts and training of a result, in one line."""
    settings = result["settings"]
    model, task, train = settings["model"], settings["task"], settings["train"]
    tokens = train["batch"] * train["steps"]
    return (
        f"{model['encoder_layers']} + {model['decoder_layers']} x {model['dim']}, "
        f"{model['heads']} heads, dropout {model['dropout']:g} (weights of attention "
        f"{model['attention_dropout']:g}), smoothing {model['smoothing']:g}; "
        f"{task['pack']}, up to {task['lengths'][-1]} tokens, batches of "
        f"{train['batch']:,} tokens, {train['steps']:,} updates ({tokens / 1e6:,.1f}M "
        f"tokens with filling), rate {train['lr']:g}, {train['precision']}; greedy "
        f"translation of {model['translated']:,} pairs"
    )


def summary(results: Sequence[Mapping[str, Any]], size: str) -> str:
    """Signatures of the metrics, what is not scored yet, and what star and random are."""
    done = [result for result in results if result["complete"]]
    scored = [one["more"]["translated"] for one in done if "translated" in one["more"]]
    told: list[str] = []
    signatures = dict.fromkeys(
        f"{kind} {signature}"
        for one in scored
        for found in one.values()
        for kind, signature in found["signature"].items()
    )
    if signatures:
        told.append(f"Scored by sacreBLEU: {'; '.join(signatures)}.")
    if len(scored) < len(done):
        told.append(
            f"{len(done) - len(scored)} of {len(done)} results have no BLEU yet: their "
            f"texts are kept, and `everyformer reproduce sparse-translation --size {size} "
            "--show --data packs` scores them where sacrebleu and the pack are."
        )
    return "\n\n".join([*told, STAR])
