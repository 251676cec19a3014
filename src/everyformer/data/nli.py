"""Natural language inference: does the hypothesis follow from the premise?"""

import numpy as np

from everyformer.data.batch import Batch, Draw
from everyformer.data.buckets import Bucketed, Buckets
from everyformer.data.packs.nli import CLASSES
from everyformer.data.packs.pack import Pack, needs
from everyformer.data.randomness import SPLITS, Split
from everyformer.data.resident import Resident, starts_of
from everyformer.data.two_texts import Spans, two_texts
from everyformer.errors import FileFormatError

SPECIAL_TOKENS = 3
"""[CLS] A [SEP] B [SEP]."""


class Pairs(Bucketed):
    """Pairs of sentences of a pack, in buckets by their length; three classes.

    Validation pairs are training pairs that were held out when the pack was made; test
    pairs are MNLI's matched development set.

    Args:
        pack: Of pairs.
        seed: Of the order of training.
        lengths: Of the buckets; longer pairs lose the end of their longer sentence.
        held_out: Whether training leaves out the validation pairs. If not, validation says
            nothing, and settings must be chosen before.
        premise_masked: One [MASK] instead of the premise: what is right by the hypothesis
            alone, a floor that understanding must beat.
    """

    task = "pairs"
    settings = ("seed", "lengths", "held_out", "premise_masked")
    classes = len(CLASSES)

    def __init__(
        self,
        pack: Pack,
        seed: int,
        *,
        lengths: tuple[int, ...] = (32, 64, 128),
        held_out: bool,
        premise_masked: bool = False,
    ) -> None:
        names = ("tokens", "premises", "hypotheses", "labels", "splits")
        needs(pack, *names, tokens=("tokens",))
        self.pack, self.seed, self.lengths = pack, seed, lengths
        self.held_out, self.premise_masked = held_out, premise_masked
        arrays = {name: pack.arrays[name].astype(np.int64) for name in names}
        _check(pack.name, arrays)
        a, b = arrays["premises"], arrays["hypotheses"]
        first = starts_of(a + b)
        second, text = first + a, arrays["tokens"]
        if premise_masked:
            first, a = np.full_like(first, len(text)), np.ones_like(a)
        a, b = shortened(a, b, lengths[-1] - SPECIAL_TOKENS)
        self.buckets = {}
        self.sizes: dict[Split, np.ndarray] = {}
        columns = (first, a, second, b, arrays["labels"])
        held: dict[str, np.ndarray] = {}
        held["text"] = np.append(text, pack.specials["[MASK]"]).astype(np.int32)
        for split in SPLITS:
            own = self._members(split, arrays["splits"])
            sizes = (a + b)[own] + SPECIAL_TOKENS
            self.sizes[split] = sizes
            self.buckets[split] = Buckets(sizes, lengths, seed)
            held[split] = np.stack([column[own] for column in columns])
        self._held = Resident(held)

    def batch(self, split: Split, draw: Draw) -> Batch:
        """Pairs and their classes, (b,)."""
        held = self._held.on(draw.numbers.device)
        *spans, labels = held[split][:, draw.numbers.clamp(min=0)]
        found = two_texts(held["text"], Spans(*spans), draw.length, self.pack.specials)
        return Batch(
            found.tokens, labels.long(), (draw.numbers >= 0).float(),
            segments=found.segments, padding=found.padding,
        )  # fmt: skip

    def clusters(self, split: Split) -> np.ndarray:
        """Each pair is its own."""
        return np.arange(len(self._members(split, self.pack.arrays["splits"])))

    def _members(self, split: Split, splits: np.ndarray) -> np.ndarray:
        """Pairs of the pack that belong to a split; those left out belong to none."""
        own = splits == SPLITS.index(split)
        if split == "train" and not self.held_out:
            own |= splits != SPLITS.index("test")
        return np.flatnonzero(own)


def shortened(
    first: np.ndarray, second: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Lengths after tokens were taken from the longer text until both fit, as BERT does.

    Of texts of equal length the second loses a token first.

    Example:
        >>> shortened(np.array([9, 2, 5]), np.array([2, 9, 5]), 7)
        (array([5, 2, 4]), array([2, 5, 3]))
    """
    small = np.minimum(first, second)
    # Both are cut to equal lengths only where the shorter one is above half.
    low = np.minimum(small, most // 2)
    cut = first + second > most
    a = np.where(first > second, most - low, low)
    even = small > most // 2
    a = np.where(even, most - most // 2, a)
    return np.where(cut, a, first), np.where(cut, most - a, second)


def _check(name: str, arrays: dict[str, np.ndarray]) -> None:
    """Lengths that add up, classes and splits that exist.

    Raises:
        FileFormatError: If not.
    """
    counts = {len(arrays[key]) for key in ("premises", "hypotheses", "labels", "splits")}
    total = int(arrays["premises"].sum() + arrays["hypotheses"].sum())
    good = len(counts) == 1 and total == len(arrays["tokens"])
    good = good and arrays["labels"].max(initial=0) < len(CLASSES)
    if not good or not arrays["tokens"].size:
        msg = (
            f"The arrays of the pack {name!r} do not fit together: columns of {counts} "
            f"pairs, and {len(arrays['tokens'])} tokens for {total}. Make the pack anew."
        )
        raise FileFormatError(msg)
