"""`sparse-lm`: which sparse pattern is best for a language model?

Yun et al. 2020 (sparse): Transformers of 12 blocks on LM1B at length 256, whose attention
is STRIDED, FIXED, STAR or RANDOM, against the sparsity. Here every arm is trained on the
same windows in the same order, from the same weights; arms differ in the mask alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from everyformer.data.documents import Documents
from everyformer.experiments.cell import Cell, Labels, Size, training_cell
from everyformer.experiments.changes import Settable
from everyformer.experiments.own_pattern import read_own_pattern
from everyformer.experiments.perplexity import perplexity
from everyformer.experiments.rates import at_rate, split_rate
from everyformer.experiments.sparse_arms import Arm, operations
from everyformer.experiments.sparse_lm.packs import Text, text_of
from everyformer.experiments.sparse_lm.plan import OWN, order
from everyformer.experiments.sparse_lm.sizes import SCALES, Scale
from everyformer.train.evaluation import Score
from everyformer.train.loop import Outcome
from everyformer.train.objectives.next_token import TokenLosses

SETTABLE = Settable(
    "sparse-lm",
    model=("dim", "layers", "heads", "ffn"),
    own=("most",),
    told="most documents of an evaluation; pattern, a file of masks (.npy) or of a pattern "
    "(.json)",
)
ALONE = "without_context"
"""The reading whose every window is scored whole, with nothing before it."""


def cells(
    size: Size, seeds: Sequence[int], changes: Mapping[str, Any], data: Path | None = None
) -> list[Cell]:
    """All cells in the order of `plan.order`; before them those of a pattern given."""
    changes = dict(changes)
    given = changes.pop("pattern", None)
    scale = SETTABLE.change(SCALES[size], changes)
    n = scale.model.max_len
    pattern = None if given is None else read_own_pattern(Path(str(given)), n)
    text = text_of(size, data)
    contexts = {"nats": n // 2, ALONE: 0}
    task = cache(partial(Documents, text.pack, n, contexts=contexts, most=scale.most))
    labels = list(order(size, seeds))
    if pattern is not None:
        own = [{"density": OWN, "arm": pattern.name, "seed": seed} for seed in seeds]
        labels = [*own, *labels]
    made: list[Cell] = []
    for one in labels:
        name, seed = str(one["arm"]), int(one["seed"])
        density, rate = split_rate(str(one["density"]))
        own_scale = replace(scale, train=at_rate(scale.train, rate))
        width = 0 if density == OWN else scale.sets[density][name]
        arm = Arm(
            name, width, n, causal=True, draw=seed,
            given=pattern if density == OWN else None,
        )  # fmt: skip
        made.append(_cell(one, arm, own_scale, text, task(seed)))
    return made


def _cell(labels: Labels, arm: Arm, scale: Scale, text: Text, task: Documents) -> Cell:
    """The complete config of one run."""
    config = replace(scale.train, seed=int(labels["seed"]))
    words = text.pack.vocabulary
    model = replace(scale.model, vocab_size=words + -words % scale.multiple)
    described = {**model.to_json(), "mixers": arm.to_json(), "objective": "next token"}
    described["words_of_a_token"] = dict(text.words_of_a_token)
    described["words_counted"] = text.counted
    work = operations(model, config, model.max_len, model.max_len)

    def of_words(score: Score, split: str = "test") -> tuple[float, float]:
        return perplexity(score, 1 / text.words_of_a_token[split])

    def derived(outcome: Outcome) -> dict[str, Any]:
        found = {name: of_words(score)[0] for name, score in outcome.test.items()}
        found["validation"] = of_words(outcome.validation["nats"], "validation")[0]
        return {"perplexity": found}

    more = {
        "density": 100 * arm.density(model.layers),
        "width": arm.width,
        "operations": work,
        "tokens": config.steps * config.batch * model.max_len,
    }
    return training_cell(
        labels,
        lambda: TokenLosses(arm.encoder(model)),
        described,
        task,
        config,
        more,
        metric="nats",
        clusters=lambda: task.clusters("test"),
        operations=work,
        derived=derived,
        shown=lambda outcome: of_words(outcome.test["nats"]),
    )
