"""Which cells `sparse-translation` has, in the order in which they are run: the core first.

100                          dense attention
13                           sparse arms, by their density in per cent at full length
13-half-rate, 13-twice-rate  a quarter of the updates at other rates: does an order flip?
"""

from collections.abc import Iterator, Sequence

from everyformer.experiments.cell import Size, labelled
from everyformer.experiments.rates import at_other_rates
from everyformer.experiments.sparse_translation.sizes import DENSE, SCALES


@labelled("density", "arm", "seed")
def order(size: Size, seeds: Sequence[int]) -> Iterator[tuple[str, str, int]]:
    """Labels of all cells: all arms of every seed, then other rates."""
    scale = SCALES[size]
    for seed in seeds:
        yield DENSE, "dense", seed
        yield from ((scale.density, arm, seed) for arm in scale.widths)
    if size == "reduced":
        for name in at_other_rates(scale.density):
            yield from ((name, arm, seeds[0]) for arm in scale.widths)
