"""Exact match and F1 of SQuAD 1.1, with the rules of its official script.

An answer is lower-cased, freed of ASCII punctuation, then of the words a, an, the, and its
whitespace is made single; in this order. Exact match compares the texts that are left, F1
their words with multiplicity. Of several true answers the best counts. Where nothing is
left on both sides the match is exact and F1 is 0, as the script has it.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """What of an answer is compared.

    Example:
        >>> normalised("The  Cat's!")
        'cats'
    """
    return " ".join(ARTICLES.sub(" ", answer.lower().translate(PUNCTUATION)).split())


def exact(said: str, true: str) -> float:
    """1 if both are the same after normalising, else 0."""
    return float(normalised(said) == normalised(true))


def f1(said: str, true: str) -> float:
    """The harmonic mean of precision and recall over words.

    Example:
        >>> f1("the old cat", "cat")
        0.6666666666666666
    """
    own, theirs = normalised(said).split(), normalised(true).split()
    common = (Counter(own) & Counter(theirs)).total()
    if common == 0:
        return 0.0
    precision, recall = common / len(own), common / len(theirs)
    return 2 * precision * recall / (precision + recall)


def judge(said: str | None, answers: Sequence[str]) -> tuple[float, float]:
    """F1 and exact match, each the best over the true answers; 0 without an answer."""
    if said is None or not answers:
        return 0.0, 0.0
    return max(f1(said, one) for one in answers), max(exact(said, one) for one in answers)
