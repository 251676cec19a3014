"""Pre-training on windows of running text: masked words, and whether B follows A.

With windows of n tokens, window i of epoch e holds the n - 3 tokens of the training text
from i (n - 3) + h(e) on, h a hash: [CLS] A [SEP] B [SEP]. A is its first part, of a hashed
length between n/4 and 3n/4. B is the rest or, with probability 1/2, as many tokens from
another place, which no token of the window touches. Windows are always full, and do not
respect the ends of sentences and articles.

Validation and test windows lie at equal distances over their text and may overlap. Their
masks depend on nothing but their number, so that all models are asked the same.
"""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from everyformer.data.batch import Batch, Draw
from everyformer.data.draws import consecutive, every
from everyformer.data.masking import LONGEST, masked
from everyformer.data.order import Order
from everyformer.data.pack_task import PackTask
from everyformer.data.packs.pack import Pack, needs
from everyformer.data.randomness import SPLITS, Split, mixed, mixed_key, scaled
from everyformer.data.resident import Resident
from everyformer.data.two_texts import Spans, two_texts
from everyformer.errors import InputError

SHORTEST = 16
ORDER, TRAINING, EVALUATION = range(3)
USES = CUT, FOLLOWS, ELSEWHERE, MASKS = 0, 1, 2, 3
"""What the key of a window is for."""


class MaskedWindows(PackTask):
    """Windows of the texts of a pack.

    Args:
        pack: With the texts train, validation and test.
        seq_len: n.
        seed: Of order and masks of the training windows.
        masked_share: m / n; m is rounded to a whole number.
        evaluated: Windows of the validation and of the test text.
        next_sentence: Whether B may come from elsewhere.
        longer: (from_step, length, batch): from this update on windows are longer, and
            an update has so many of them.
    """

    task = "masked windows"
    settings = ("seq_len", "seed", "masked_share", "evaluated", "next_sentence", "longer")

    def __init__(
        self,
        pack: Pack,
        seq_len: int,
        seed: int,
        *,
        masked_share: float = 0.15,
        evaluated: int = 4096,
        next_sentence: bool = True,
        longer: tuple[int, int, int] | None = None,
    ) -> None:
        needs(pack, "train", "validation", "test", tokens=("train", "validation", "test"))
        self.pack, self.seq_len, self.seed = pack, seq_len, seed
        self.masked_share, self.evaluated = masked_share, evaluated
        self.next_sentence, self.longer = next_sentence, longer
        lengths = {seq_len} if longer is None else {seq_len, longer[1]}
        texts = {split: pack.arrays[split] for split in SPLITS}
        self._check(lengths, {split: len(text) for split, text in texts.items()})
        self._orders = {
            n: Order(self.windows(n), mixed_key(seed, ORDER, n)) for n in lengths
        }
        plain = np.setdiff1d(np.arange(pack.vocabulary), list(pack.specials.values()))
        self._held = Resident({**texts, "words": plain})

    def windows(self, length: int) -> int:
        """Windows of an epoch."""
        content = length - 3
        return (len(self.pack.arrays["train"]) - content + 1) // content

    def draw(
        self, step: int, batch: int, part: int, parts: int, device: torch.device
    ) -> Draw:
        """The windows of one part of update `step`."""
        if self.longer is not None and step >= self.longer[0]:
            first, length, size = self.longer
            since = step - first
            return consecutive(since * size, size, part, parts, length, device)
        return super().draw(step, batch, part, parts, device)

    def evaluation(
        self, split: Split, batch: int, part: int, parts: int, device: torch.device
    ) -> Iterator[Draw]:
        """Every window that is scored, once."""
        return every(self.evaluated, batch, part, parts, self.seq_len, device)

    def batch(self, split: Split, draw: Draw) -> Batch:
        """Masked windows; labels, weights and places of m tokens of each."""
        n, content = draw.length, draw.length - 3
        held = self._held.on(draw.numbers.device)
        text = held[split]
        numbers = draw.numbers.long().clamp(min=0)
        starts, keys = self._windows(split, n, numbers, len(text))
        uses = torch.arange(len(USES), device=keys.device)
        bits = mixed(keys[:, None], uses)
        a = n // 4 + scaled(bits[:, CUT], 3 * n // 4 - n // 4 + 1)
        second = starts + a
        follows = None
        if self.next_sentence:
            follows = scaled(bits[:, FOLLOWS], 2)
            range_ = len(text) - content
            away = content + scaled(bits[:, ELSEWHERE], range_ - 2 * content + 1)
            second = torch.where(follows == 1, second, (starts + away) % range_)
        spans = Spans(starts, a, second, content - a)
        found = two_texts(text, spans, n, self.pack.specials)
        hidden = masked(
            found.tokens, found.texts, bits[:, MASKS], self.masked(n),
            mask=self.pack.specials["[MASK]"], words=held["words"],
        )  # fmt: skip
        real = (draw.numbers >= 0).float()[:, None]
        return Batch(
            hidden.tokens, hidden.labels, real.expand(hidden.labels.shape),
            segments=found.segments, places=hidden.places, next_labels=follows,
        )  # fmt: skip

    def masked(self, length: int) -> int:
        """Hidden tokens of a window, m."""
        return round(self.masked_share * length)

    def clusters(self, split: Split) -> np.ndarray:
        """For each window that is scored the article in which it begins."""
        needs(self.pack, f"{split}_articles")
        text = len(self.pack.arrays[split])
        starts = np.arange(self.evaluated) * (text - self.seq_len + 3)
        starts //= max(1, self.evaluated - 1)
        return np.searchsorted(self.pack.arrays[f"{split}_articles"], starts, "right") - 1

    def _windows(
        self, split: Split, n: int, numbers: Int[Tensor, " b"], text: int
    ) -> tuple[Int[Tensor, " b"], Int[Tensor, " b"]]:
        """Where windows start, and a key for each."""
        content = n - 3
        if split != "train":
            key = mixed_key(EVALUATION, SPLITS.index(split), n)
            starts = numbers * (text - content) // max(1, self.evaluated - 1)
            return starts, mixed(key, numbers)
        order = self._orders[n]
        epochs = numbers // order.count
        windows = order.at(epochs, numbers % order.count)
        key = mixed_key(self.seed, TRAINING, n)
        of_epoch = mixed(key, epochs)
        return windows * content + scaled(of_epoch, content), mixed(of_epoch, windows)

    def _check(self, lengths: set[int], texts: dict[str, int]) -> None:
        """Refuse what leaves no window, or no place for another B.

        Raises:
            InputError: With all that is wrong.
        """
        wrong: list[str] = []
        if not 0 < self.masked_share <= 0.5:
            wrong.append(f"masked_share={self.masked_share} is not in (0, 0.5]")
        if self.evaluated < 1:
            wrong.append(f"evaluated={self.evaluated} windows leave nothing to evaluate")
        for n in sorted(lengths):
            if not SHORTEST <= n <= LONGEST:
                wrong.append(f"windows of {n} tokens: give {SHORTEST} to {LONGEST}")
            elif round(self.masked_share * n) < 1:
                wrong.append(f"masked_share={self.masked_share} of {n} tokens is nothing")
            wrong += [
                f"the {split} text has {count} tokens, too few for windows of {n}"
                for split, count in texts.items()
                if count < 4 * n
            ]
        if self.longer is not None and (
            self.longer[0] < 0 or self.longer[1] == self.seq_len or self.longer[2] < 1
        ):
            wrong.append(f"longer={self.longer} is not (step, other length, batch)")
        if wrong:
            msg = f"Windows of {self.pack.name!r}: {'; '.join(wrong)}."
            raise InputError(f"{msg} Change these settings, or use a larger pack.")
