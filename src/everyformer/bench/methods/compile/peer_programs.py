"""Programs on tokens 0 .. V - 1, as continuous piecewise linear functions and as meant.

Each `Program` has f on [0, V - 1]^n, which equals the program on integers; `meaning`, the
program itself in plain Python; and the integer inputs on which both are judged. Equality of
tokens becomes relu(1 - |x - y|), the order x < y becomes relu(y - x) - relu(y - x - 1), and
"a where c, else 0" becomes relu(a - top (1 - c)) for a in [0, top] and c in {0, 1}.

Only numpy is imported: `benchmarks/peers` reads this file in other environments.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

MOST_INPUTS = 20_000
"""All inputs if there are not more of them, else so many at random."""

Function = Callable[[np.ndarray], np.ndarray]
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """A program on n tokens of a vocabulary of V.

    Attributes:
        name: Of the program.
        n: Tokens.
        vocabulary: V.
        function: f, from arrays (batch, n, 1) to arrays of that shape.
        meaning: What the program gives for integers.
        gaps: Distance between neighbouring results, token by token.
        kind: Which inputs are judged: "all" words, "distinct" tokens, or "balanced": words
            of brackets, every other one balanced where they are drawn at random.
    """

    name: str
    n: int
    vocabulary: int
    function: Function
    meaning: Callable[[Tokens], list[float]]
    gaps: tuple[float, ...]
    kind: str = "all"

    @property
    def number_of_inputs(self) -> int:
        """How many inputs there are."""
        if self.kind == "distinct":
            return math.perm(self.vocabulary, self.n)
        return self.vocabulary**self.n

    def inputs(self) -> np.ndarray:
        """The inputs on which exactness is judged: (count, n) integers."""
        if self.number_of_inputs <= MOST_INPUTS:
            return np.array(list(self._all()), dtype=np.int64)
        rng = np.random.default_rng(self.n)
        if self.kind == "distinct":
            drawn = [rng.permutation(self.vocabulary)[: self.n] for _ in range(MOST_INPUTS)]
            return np.stack(drawn)
        words = rng.integers(0, self.vocabulary, (MOST_INPUTS, self.n))
        if self.kind == "balanced":
            words[::2] = [
                balanced_word(rng, self.n, self.vocabulary // 2) for _ in words[::2]
            ]
        return words

    def _all(self) -> Iterator[Tokens]:
        if self.kind == "distinct":
            return itertools.permutations(range(self.vocabulary), self.n)
        return itertools.product(range(self.vocabulary), repeat=self.n)

    def exact(self, words: np.ndarray, results: np.ndarray) -> tuple[int, float]:
        """How many words have all results nearest to what is meant, and the largest gap."""
        meant = np.array([self.meaning(tuple(word)) for word in words.tolist()])
        away = np.abs(results - meant)
        away[~np.isfinite(away)] = math.inf
        right = (away < np.asarray(self.gaps) / 2).all(axis=-1)
        return int(right.sum()), float(away.max())


def balanced_word(rng: np.random.Generator, n: int, pairs: int) -> np.ndarray:
    """Shuffled balanced words of several pairs; 2 p opens pair p and 2 p + 1 closes it.

    If n is odd the last token is drawn freely, so that the word is not balanced.
    """
    word, depth = np.empty(n, dtype=np.int64), np.zeros(pairs, dtype=np.int64)
    for i in range(n):
        left = n - n % 2 - i
        may_open, may_close = left > depth.sum(), depth.any()
        if left <= 0:
            word[i] = rng.integers(0, 2 * pairs)
        elif may_open and (not may_close or rng.random() < 0.5):
            pair = rng.integers(0, pairs)
            word[i], depth[pair] = 2 * pair, depth[pair] + 1
        else:
            pair = rng.choice(np.flatnonzero(depth))
            word[i], depth[pair] = 2 * pair + 1, depth[pair] - 1
    return word


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0)."""
    return np.maximum(x, 0)


def equal(x: np.ndarray, y: np.ndarray | float) -> np.ndarray:
    """1 where two integers are equal, 0 where they are not, linear between."""
    return relu(1 - np.abs(x - y))


def reverse(n: int, vocabulary: int) -> Program:
    """The tokens from the last to the first."""
    return Program(
        "reverse", n, vocabulary, lambda x: x[..., ::-1, :], lambda w: [*w[::-1]], (1,) * n
    )


def sort(n: int, vocabulary: int) -> Program:
    """The tokens in order."""
    return Program(
        "sort", n, vocabulary, lambda x: np.sort(x, axis=-2), lambda w: sorted(w), (1,) * n
    )


def sort_unique(n: int, vocabulary: int) -> Program:
    """Distinct tokens in order, by counting: r_i = #{k: x_k < x_i}, y_j = x_i at r_i = j.

    f_j = sum_i relu(x_i - (V - 1) |r_i - j|) with r_i = sum_k [x_k < x_i].
    """
    places = np.arange(n)

    def f(x: np.ndarray) -> np.ndarray:
        above = x - np.swapaxes(x, -1, -2)
        rank = (relu(above) - relu(above - 1)).sum(axis=-1, keepdims=True)
        moved = relu(x - (vocabulary - 1) * np.abs(rank - places))
        return np.swapaxes(moved.sum(axis=-2, keepdims=True), -1, -2)

    return Program(
        "sort unique", n, vocabulary, f, lambda w: sorted(w), (1,) * n, "distinct"
    )


def histogram(n: int, vocabulary: int) -> Program:
    """How often each token occurs: f_i = sum_k relu(1 - |x_i - x_k|)."""

    def f(x: np.ndarray) -> np.ndarray:
        return equal(x, np.swapaxes(x, -1, -2)).sum(axis=-1, keepdims=True)

    return Program("histogram", n, vocabulary, f, _counts, (1,) * n)


def histogram_by_value(n: int, vocabulary: int) -> Program:
    """How often each token occurs, by counts of values.

    f_i = sum_v relu(c_v - n |x_i - v|) with c_v = sum_k relu(1 - |x_k - v|).
    """
    values = np.arange(vocabulary)

    def f(x: np.ndarray) -> np.ndarray:
        counts = equal(x, values).sum(axis=-2, keepdims=True)
        return relu(counts - n * np.abs(x - values)).sum(axis=-1, keepdims=True)

    return Program("histogram, by value", n, vocabulary, f, _counts, (1,) * n)


def _counts(word: Tokens) -> list[float]:
    return [word.count(token) for token in word]


def fraction_of_previous(n: int, vocabulary: int) -> Program:
    """Which part of the tokens so far is token 1."""
    so_far = np.arange(1, n + 1)[:, None]

    def meaning(word: Tokens) -> list[float]:
        return [word[: i + 1].count(1) / (i + 1) for i in range(n)]

    return Program(
        "fraction of previous",
        n,
        vocabulary,
        lambda x: np.cumsum(equal(x, 1), axis=-2) / so_far,
        meaning,
        tuple(1 / i for i in range(1, n + 1)),
    )


def shuffle_dyck(n: int, vocabulary: int) -> Program:
    """1 if the brackets of every pair are balanced, else 0; 2 p opens and 2 p + 1 closes.

    f = relu(1 - sum_p |b_p(n)| - sum_p relu(-min_k b_p(k))) for the balances b_p(k) after k
    tokens: a sum of integers >= 0 is 0 only if all of them are.
    """
    pairs = vocabulary // 2

    def f(x: np.ndarray) -> np.ndarray:
        wrong = np.zeros(())
        for p in range(pairs):
            step = 1 - 2 * x if pairs == 1 else equal(x, 2 * p) - equal(x, 2 * p + 1)
            balance = np.cumsum(step, axis=-2)
            wrong = wrong + np.abs(balance[..., -1:, :])
            wrong = wrong + relu(-balance.min(axis=-2, keepdims=True))
        return relu(1 - wrong) + 0 * x

    def meaning(word: Tokens) -> list[float]:
        depth = [0] * pairs
        for token in word:
            depth[token // 2] += 1 - 2 * (token % 2)
            if min(depth) < 0:
                return [0.0] * n
        return [float(not any(depth))] * n

    name = f"shuffle Dyck-{pairs}"
    return Program(name, n, vocabulary, f, meaning, (1,) * n, "balanced")


PROGRAMS: dict[str, Callable[[int, int], Program]] = {
    "reverse": reverse,
    "sort": sort,
    "sort unique": sort_unique,
    "histogram": histogram,
    "histogram, by value": histogram_by_value,
    "fraction of previous": fraction_of_previous,
    "shuffle Dyck-1": shuffle_dyck,
    "shuffle Dyck-2": shuffle_dyck,
}


def vocabulary_of(name: str, n: int) -> int:
    """V of the table: 4, n where tokens are distinct, two for each pair of brackets."""
    if name == "sort unique":
        return n
    return {"shuffle Dyck-1": 2}.get(name, 4)
