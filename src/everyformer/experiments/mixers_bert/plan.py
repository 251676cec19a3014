"""Which cells `mixers-bert` has, in the order in which they are run: the core first.

mlm                 pre-training: masked words and next sentences
mnli                fine-tuning of the same model, right after it
mlm-long, squad     pre-training that ends with longer windows, and questions
hypothesis          mnli with hidden premises: the floor that understanding must beat
mlm-half-rate, mlm-twice-rate
a quarter of the updates at other rates: does an order flip?
"""

from collections.abc import Iterator, Mapping, Sequence

from everyformer.experiments.cell import Size, labelled
from everyformer.experiments.mixers_bert.sizes import SCALES
from everyformer.experiments.rates import at_other_rates

MAIN = ("attention", "light", "average", "bilinear")
"""The rows of Table 1."""

PARENTS: Mapping[str, str] = {
    "mnli": "mlm",
    "hypothesis": "mlm",
    "squad": "mlm-long",
    "mnli-long": "mlm-long",
}
"""The task that a fine-tuning begins with the weights of."""


def mixers_of(arm: str, layers: int) -> tuple[str, ...]:
    """The mixer of each layer of an arm; "light-j" has j light convolutions at first.

    Example:
        >>> mixers_of("light-1", 3), mixers_of("average", 2)
        (('light', 'attention', 'attention'), ('average', 'average'))
    """
    mixer, _, count = arm.partition("-")
    if not count:
        return (mixer,) * layers
    return (mixer,) * int(count) + ("attention",) * (layers - int(count))


@labelled("task", "arm", "seed")
def order(size: Size, seeds: Sequence[int]) -> Iterator[tuple[str, str, int]]:
    """Labels of all cells: the core of every seed, then what is beyond it."""
    hybrids = [f"light-{j}" for j in SCALES[size].hybrids]
    if size == "paper":
        yield from _paper(hybrids, seeds)
        return
    core, more = hybrids[:2], hybrids[2:]
    for seed in seeds:
        for arm in (*MAIN, *core):
            yield from _tuned("mlm", ("mnli",), arm, seed)
        for arm in ("attention", hybrids[0], "light"):
            yield from _tuned("mlm-long", ("squad",), arm, seed)
        if seed == seeds[0]:
            yield "hypothesis", "attention", seed
    for seed in seeds:
        for arm in more:
            yield from _tuned("mlm", ("mnli",), arm, seed)
        for arm in core[1:]:
            yield from _tuned("mlm-long", ("squad",), arm, seed)
    yield from _tuned("mlm", ("mnli",), "separable", seeds[0])
    if size != "reduced":
        yield from _tuned("mlm", ("mnli",), "dynamic", seeds[0])
    else:
        for task in at_other_rates("mlm"):
            for arm in (*MAIN, *hybrids):
                yield task, arm, seeds[0]


def _paper(hybrids: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, str, int]]:
    """Table 1, then Figure 1, whose every depth has its own pre-training."""
    for seed in seeds:
        for arm in MAIN:
            yield from _tuned("mlm", ("mnli",), arm, seed)
        for arm in ("attention", *hybrids, "light"):
            yield from _tuned("mlm-long", ("mnli-long", "squad"), arm, seed)


def _tuned(
    parent: str, tasks: Sequence[str], arm: str, seed: int
) -> Iterator[tuple[str, str, int]]:
    yield parent, arm, seed
    for task in tasks:
        yield task, arm, seed
