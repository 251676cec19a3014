"""Which cells `sparse-glue` has, in the order in which they are run: the core first.

mlm                              pre-training: masked words and next sentences
mnli                             fine-tuning of the same model, right after it
cola, mrpc, rte, sts-b, sst-2    fine-tuning of the same model, several times
"""

from collections.abc import Iterator, Sequence

from everyformer.experiments.cell import Size, labelled
from everyformer.experiments.sparse_glue.sizes import SCALES

PRETRAINED = "mlm"
OTHER_SEEDS = 100
"""Between the seeds of the fine-tunings of one model."""


@labelled("task", "arm", "tuning", "seed")
def order(size: Size, seeds: Sequence[int]) -> Iterator[tuple[str, str, int, int]]:
    """Labels of all cells: pre-training and MNLI of every arm, then the other tasks."""
    scale = SCALES[size]
    for seed in seeds:
        for arm in scale.widths:
            yield PRETRAINED, arm, 0, seed
            yield "mnli", arm, 0, seed
        for tuning in range(scale.tunings):
            for task in scale.tasks:
                yield from ((task, arm, tuning, seed) for arm in scale.widths)
