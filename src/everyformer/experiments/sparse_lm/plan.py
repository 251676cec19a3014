"""Which cells `sparse-lm` has, in the order in which they are run: the core first.

100                          dense attention
13, 26                       sparse arms, by their density in per cent
13-half-rate, 13-twice-rate  a quarter of the updates at other rates: does an order flip?
own                          a pattern of the user's, `--set 'pattern="masks.npy"'`
"""

from collections.abc import Iterator, Sequence

from everyformer.experiments.cell import Size, labelled
from everyformer.experiments.rates import at_other_rates
from everyformer.experiments.sparse_lm.sizes import DENSE, SCALES

OWN = "own"
FEWER_SEEDS = 2
"""Of sets that are drawn and not judged."""


@labelled("density", "arm", "seed")
def order(size: Size, seeds: Sequence[int]) -> Iterator[tuple[str, str, int]]:
    """Labels of all cells: dense and the first density of every seed, then the rest."""
    sets = SCALES[size].sets
    main, *more = [name for name in sets if name != DENSE]
    for seed in seeds:
        yield DENSE, "dense", seed
        yield from ((main, arm, seed) for arm in sets[main])
    for density in more:
        for seed in seeds[:FEWER_SEEDS]:
            yield from ((density, arm, seed) for arm in sets[density])
    if size == "reduced":
        for name in at_other_rates(main):
            yield from ((name, arm, seeds[0]) for arm in sets[main])
