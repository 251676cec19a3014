"""Which cells `urpe-wikitext` has, in the order in which they are run: the core first.

enwiki-words                Wikipedia of 2015 in the words of WikiText-2
enwiki-words-half-rate, enwiki-words-twice-rate
                            a quarter of the updates at other rates: does an order flip?
wikitext-2, wikitext-103    the data sets of those names
excerpt                     a text made by a grammar, for tests and laptops
"""

from collections.abc import Iterator, Mapping, Sequence

from everyformer.experiments.cell import Size, labelled
from everyformer.experiments.rates import at_other_rates

ARMS: Mapping[str, str] = {"xl": "none", "xl+urpe": "shared", "xl+urpe-layer": "layer"}
"""With the gain of each: none, one for all layers, or one for each."""

MAIN = ("xl", "xl+urpe")
SHORT = ("excerpt", "wikitext-2")
"""Texts of the sizes smoke and small."""


@labelled("text", "arm", "seed")
def order(size: Size, seeds: Sequence[int]) -> Iterator[tuple[str, str, int]]:
    """Labels of all cells: the core of every seed, then what is beyond it."""
    if size == "paper":
        yield from _each("wikitext-103", MAIN, seeds)
    elif size == "reduced":
        yield from _each("enwiki-words", MAIN, seeds)
        yield from _each("enwiki-words", ("xl+urpe-layer",), seeds)
        for text in at_other_rates("enwiki-words"):
            yield from _each(text, MAIN, seeds[:1])
        yield from _each("wikitext-2", MAIN, seeds)
    else:
        for text in SHORT:
            yield from _each(text, tuple(ARMS), seeds)


def _each(
    text: str, arms: Sequence[str], seeds: Sequence[int]
) -> Iterator[tuple[str, str, int]]:
    for seed in seeds:
        for arm in arms:
            yield text, arm, seed
