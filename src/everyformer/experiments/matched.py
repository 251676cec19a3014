"""Random sets that are as dense as a pattern, in short texts too.

Random keys among n tokens are spread evenly; patterns are denser near the diagonal. So of
two patterns with 13 % of the pairs of n tokens, the random one leaves a short text, which
has their first tokens, far fewer connections. Here token k hears as many earlier tokens,
and is heard by as many, as in the other pattern: both have equally many connections among
the first m tokens, for every m.
"""

from functools import lru_cache

import numpy as np

from everyformer.patterns import Gathered, Part, Pattern, Rows


@lru_cache(maxsize=256)
def matched(like: Part, seed: int) -> Pattern:
    """Random sets with as many connections among the first m tokens as `like`, for all m.

    Token k hears itself, as many earlier tokens as in `like`, and as many earlier tokens
    hear it.
    """
    rng, mask = np.random.default_rng(seed), like.mask()
    listeners, heard = [np.arange(like.n)], [np.arange(like.n)]
    for k in range(1, like.n):
        own = rng.choice(k, int(mask[k, :k].sum()), replace=False)
        others = rng.choice(k, int(mask[:k, k].sum()), replace=False)
        listeners += [np.full(len(own), k), others]
        heard += [own, np.full(len(others), k)]
    rows = Rows.of_pairs(like.n, np.concatenate(listeners), np.concatenate(heard))
    return Pattern("random", (Gathered(like.n, rows),))
