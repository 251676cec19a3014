"""Long contexts are read through windows: where these begin, and which answer counts.

With q tokens of the question a window holds M = n - q - 3 tokens of the context; the next
begins `stride` tokens later (BERT's doc_stride is such a step, not an overlap), until one
reaches the end. A token lies in several windows. It may begin an answer only in the one
where it has the most context: the largest min(tokens to its left, to its right) + 0.01 x
length of the window, the first of equals (google-research/bert, _check_is_max_context).

For windows k < j with starts s_k < s_j and ends e_k <= e_j the difference of these numbers
falls with the place of the token: in turn s_j - s_k, then with slope -2, then e_k - e_j, up
to one constant. So the tokens that belong to a window are an interval.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from everyformer.errors import InputError

LONGEST_QUESTION = 64
SPECIAL_TOKENS = 3


class Windows(NamedTuple):
    """Windows of many questions, in the order of the questions.

    Attributes:
        questions: Which question each belongs to.
        starts: First token of the context in it.
        lengths: Tokens of the context in it.
        lows: First token of the context that may begin an answer here.
        highs: The one after the last.
    """

    questions: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    lows: np.ndarray
    highs: np.ndarray


def windows(
    contexts: np.ndarray, questions: np.ndarray, length: int, stride: int
) -> Windows:
    """The windows of questions.

    Args:
        contexts: Tokens of the context of each question.
        questions: Tokens of each question, cut to at most 64.
        length: n.
        stride: Step from one window to the next.

    Raises:
        InputError: If a question leaves no room for its context.
    """
    room = length - SPECIAL_TOKENS - questions
    if stride < 1 or room.min(initial=1) < 1:
        msg = (
            f"Windows of {length} tokens with a step of {stride} hold no context beside a "
            f"question of {questions.max(initial=0)}. Give at least "
            f"{LONGEST_QUESTION + SPECIAL_TOKENS + 1} tokens and a step of 1 or more."
        )
        raise InputError(msg)
    own = [
        cut(int(tokens), int(most), stride)
        for tokens, most in zip(contexts, room, strict=True)
    ]
    of_question = np.repeat(np.arange(len(own)), [len(one) for one in own])
    table = np.concatenate([*own, np.empty((0, 4), np.int64)])
    return Windows(of_question, *table.T)


@lru_cache(maxsize=1 << 16)
def cut(tokens: int, most: int, stride: int) -> np.ndarray:
    """Start, length, low and high of each window of one context.

    Example:
        >>> cut(10, 6, 3)
        array([[ 0,  6,  0,  5],
               [ 3,  6,  5,  8],
               [ 6,  4,  8, 10]])
    """
    step = min(stride, most)
    count = 1 + max(0, -(-(tokens - most) // step))
    starts = np.arange(count) * step
    lengths = np.minimum(most, tokens - starts)
    place = np.arange(tokens)
    left = place - starts[:, None]
    right = starts[:, None] + lengths[:, None] - 1 - place
    context = np.where((left >= 0) & (right >= 0), np.minimum(left, right), -tokens)
    best = (100 * context + lengths[:, None]).argmax(0)
    lows = np.searchsorted(best, np.arange(count), "left")
    highs = np.searchsorted(best, np.arange(count), "right")
    return np.stack([starts, lengths, lows, highs], 1)
