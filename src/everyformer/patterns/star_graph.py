"""Does a pattern contain the star of Zaheer et al. 2020?"""

import numpy as np

from everyformer.papers import ZAHEER2020, implements
from everyformer.patterns.pattern import Pattern


@implements(ZAHEER2020, "Theorem 1")
def star_centre(pattern: Pattern) -> int | None:
    """The first token c, 0-based, that is the centre of a star in one part; or None.

    The star: c attends to all others, and every other token k to c and to itself.
    """
    n = pattern.n
    for part in pattern.parts:
        rows = part.rows()
        listeners, heard = rows.listeners(), rows.indices
        loops = np.zeros(n, dtype=bool)
        loops[listeners[listeners == heard]] = True
        others_heard = rows.counts - loops
        others_hear = np.bincount(heard, minlength=n) - loops
        at_centre = (others_heard == n - 1) & (others_hear == n - 1)
        at_centre &= loops.sum() - loops == n - 1
        if at_centre.any():
            return int(np.argmax(at_centre))
    return None
