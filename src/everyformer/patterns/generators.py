"""The patterns of the literature (Yun et al. 2020b and the papers named below).

Formulas are 1-based, as printed; arguments and results are 0-based.
"""

from collections.abc import Sequence
from itertools import count, takewhile

import numpy as np

from everyformer.errors import PatternError
from everyformer.patterns.kinds import (
    Blocks,
    Columns,
    Dense,
    Dilated,
    Gathered,
    Segments,
    Star,
    Stride,
    Union,
    Window,
    WindowGlobal,
)
from everyformer.patterns.part import Part, check_whole, whole_numbers
from everyformer.patterns.pattern import Pattern
from everyformer.patterns.rows import Rows


def dense(n: int) -> Pattern:
    """A_k = [n]: attention as usual."""
    return Pattern("dense", (Dense(n),))


def causal(n: int) -> Pattern:
    """A_k = {1, .., k}: no token hears a later one."""
    check_whole("causal", 1, n=n)
    return Pattern("causal", (Window(n, n - 1, 0),))


def strided(n: int, width: int, half_width: int | None = None) -> Pattern:
    """STRIDED, the two-sided form of Child et al. 2019.

        A^1_k = [n] ∩ {k - ceil(w/2), .., k + floor(w/2)},
        A^2_k = [n] ∩ {.., k - w, k, k + w, ..}

    Args:
        n: Number of tokens.
        width: w.
        half_width: A^1_k = [n] ∩ {k - half_width, .., k + half_width} instead.
    """
    check_whole("strided", 1, width=width)
    left, right = (width + 1) // 2, width // 2
    if half_width is not None:
        check_whole("strided", 1, half_width=half_width)
        left = right = half_width
    return Pattern("strided", (Window(n, left, right), Stride(n, width)))


def fixed(n: int, width: int, repaired: bool = False) -> Pattern:
    """FIXED, the two-sided form of Child et al. 2019.

        A^1_k = [n] ∩ {ceil(k/w) w - w + 1, .., ceil(k/w) w},
        A^2_k = [n] ∩ ({k} ∪ {w, 2w, 3w, ..})

    If w does not divide n, nobody outside the last segment hears it.

    Args:
        n: Number of tokens.
        width: w.
        repaired: Whether token n is in every A^2_k, which mends that.
    """
    name = "fixed, repaired" if repaired else "fixed"
    return Pattern(name, (Segments(n, width), Columns(n, width, repaired)))


def star(n: int, width: int = 1) -> Pattern:
    """STAR (Guo et al. 2019): a ring of n - 1 tokens and a relay, the last token.

    A_n = [n]; A_k = {n} ∪ {(i - 1) mod (n - 1) + 1 : i = k - w, .., k + w} for k < n.
    """
    return Pattern("star", (Star(n, width),))


def star_first(n: int, width: int = 1) -> Pattern:
    """STAR with the relay in front: the star with token n called 1, and k called k + 1.

    A_1 = [n]; A_k = {1} ∪ {k - w, .., k + w} round the ring 2, .., n. Its causal part keeps
    the relay, which all tokens hear and which hears itself alone; that of `star` does not.
    """
    star = Star(n, width)
    if 2 * width + 1 >= n - 1:
        return Pattern("star, relay first", (Dense(n),))
    near = np.arange(width)
    start, back = (x.ravel() for x in np.meshgrid(near, near))
    start, end = 1 + start[back >= start], (star.n - width + back)[back >= start]
    k = np.arange(n)  # a set of its own for everybody: none is empty
    listeners, heard = np.concatenate([k, start, end]), np.concatenate([k, end, start])
    seam = Gathered(n, Rows.of_pairs(n, listeners, heard))
    parts = (Union(n, (WindowGlobal(n, width, (0,)), seam)),)
    return Pattern("star, relay first", parts)


def bare_star(n: int) -> Pattern:
    """BigBird's graph S (Zaheer et al. 2020): A_1 = [n], A_k = {1, k}."""
    check_whole("bare_star", 1, n=n)
    return Pattern("bare star", (WindowGlobal(n, 0, (0,)),))


def window(n: int, half_width: int) -> Pattern:
    """A_k = [n] ∩ {k - h, .., k + h}."""
    check_whole("window", 1, half_width=half_width)
    return Pattern("window", (Window(n, half_width, half_width),))


def window_global(
    n: int, half_width: int, global_tokens: int | Sequence[int] = 1
) -> Pattern:
    """Window and global tokens: Longformer, BigBird-ITC, ETC.

    Args:
        n: Number of tokens.
        half_width: h.
        global_tokens: How many of the first tokens are global; or which ones, 0-based.
    """
    check_whole("window_global", 1, half_width=half_width)
    tokens = _global_tokens(n, global_tokens)
    return Pattern("window and global", (WindowGlobal(n, half_width, tokens),))


def big_bird(
    n: int,
    window: int = 3,
    random: int = 2,
    global_tokens: int | Sequence[int] = 1,
    seed: int = 0,
) -> Pattern:
    """BigBird (Zaheer et al. 2020) token by token: window, random keys, global tokens.

    Args:
        n: Number of tokens.
        window: Tokens of the window, the own one included; odd.
        random: Random keys of each token.
        global_tokens: How many of the first tokens are global; or which ones, 0-based.
        seed: What the random keys are drawn from.
    """
    half = _half("big_bird", window)
    tokens = _global_tokens(n, global_tokens)
    drawn = Gathered(n, _random_keys(n, random, seed))
    return Pattern("bigbird", (Union(n, (WindowGlobal(n, half, tokens), drawn)),))


def big_bird_blocks(
    n: int,
    block: int,
    window: int = 3,
    random: int = 3,
    global_blocks: int = 2,
    seed: int = 0,
) -> Pattern:
    """BigBird (Zaheer et al. 2020) as its kernels run it: in blocks of tokens.

    Args:
        n: Number of tokens.
        block: Tokens of a block.
        window: Blocks of the window, the own one included; odd.
        random: Random blocks of keys for each block of queries.
        global_blocks: How many of the first blocks hear all and are heard by all.
        seed: What the random blocks are drawn from.
    """
    check_whole("big_bird_blocks", 1, n=n, block=block)
    sizes = {"random": random, "global_blocks": global_blocks, "seed": seed}
    check_whole("big_bird_blocks", 0, **sizes)
    half, blocks = _half("big_bird_blocks", window), -(-n // block)
    rng = np.random.default_rng(seed)
    heard_by_all = set(range(min(global_blocks, blocks)))
    table: list[tuple[int, ...]] = []
    for row in range(blocks):
        near = range(max(row - half, 0), min(row + half, blocks - 1) + 1)
        own = heard_by_all.union(near)
        others = [key for key in range(blocks) if key not in own]
        chosen = rng.choice(others, min(random, len(others)), replace=False)
        kept = range(blocks) if row in heard_by_all else sorted(own.union(chosen.tolist()))
        table.append(tuple(int(key) for key in kept))
    return Pattern("bigbird in blocks", (Blocks(n, block, tuple(table)),))


def ring(n: int) -> Pattern:
    """The directed ring, A_k = {k, k - 1 mod n}: 2n connections, the least for p = 1."""
    check_whole("ring", 1, n=n)
    k = np.arange(n)
    return Pattern("ring", (_gathered(n, np.stack([k, (k - 1) % n], axis=1)),))


def log_sparse(n: int, causal: bool = False) -> Pattern:
    """LogSparse (Li et al. 2019): A_k = {k} ∪ {k ± 2^j}, or {k} ∪ {k - 2^j} if causal."""
    check_whole("log_sparse", 1, n=n)
    powers = list(takewhile(lambda step: step < n, (2**j for j in count())))
    steps = [0, *(-power for power in powers), *(() if causal else powers)]
    name = "log-sparse, causal" if causal else "log-sparse"
    return Pattern(name, (_gathered(n, np.arange(n)[:, None] + np.array(steps)),))


def dilated(n: int, half_width: int, dilations: int | Sequence[int]) -> Pattern:
    """A^l_k = [n] ∩ {k + q_l t : |t| <= h}: a dilation q for each part."""
    each = tuple(dilations) if isinstance(dilations, Sequence) else (dilations,)
    return Pattern("dilated", tuple(Dilated(n, half_width, q) for q in each))


def axial(rows: int, columns: int) -> Pattern:
    """The R x C grid, read row by row: A^1 = the own row, A^2 = the own column.

    gamma goes through the rows one after the other; each is entered in the column in which
    the one before was left, and its other tokens follow in ascending order.
    """
    check_whole("axial", 1, rows=rows, columns=columns)
    n, path, column = rows * columns, list[int](), 0
    for row in range(rows):
        order = [column, *(other for other in range(columns) if other != column)]
        path += [row * columns + place for place in order]
        column = order[-1]
    return Pattern("axial", (Segments(n, columns), Stride(n, columns)), tuple(path))


def block_local(n: int, width: int) -> Pattern:
    """A_k = the own segment of w tokens."""
    return Pattern("block-local", (Segments(n, width),))


def random(n: int, keys: int, seed: int = 0) -> Pattern:
    """RANDOM: A_k = {k} and r different tokens, drawn uniformly from all n."""
    check_whole("random", 1, n=n, keys=keys)
    k = np.arange(n)
    own = Gathered(n, Rows.of_pairs(n, k, k))
    drawn = Gathered(n, _random_keys(n, keys, seed))
    return Pattern("random", (Gathered(n, Union(n, (own, drawn)).rows()),))


def union(*patterns: Pattern) -> Pattern:
    """A_k = the union of all sets of all patterns; p = 1."""
    return cycle(*patterns).union()


def cycle(*patterns: Pattern) -> Pattern:
    """The parts of all patterns, one after the other.

    Raises:
        PatternError: If none is given, one is not a pattern, or their n differ.
    """
    wrong = [type(one).__name__ for one in patterns if not isinstance(one, Pattern)]
    if wrong:
        msg = f"Patterns are joined, but there is one of type {wrong[0]} among them. Of a"
        raise PatternError(f"{msg} part, Pattern(name, (part,)) makes a pattern.")
    parts = tuple(part for pattern in patterns for part in pattern.parts)
    return Pattern(" + ".join(pattern.name for pattern in patterns), parts)


def relabelled(pattern: Pattern, permutation: Sequence[int]) -> Pattern:
    """The same pattern with token k called permutation[k], 0-based; and so its path.

    Raises:
        PatternError: If this is not a permutation of 0..n-1.
    """
    n, order = pattern.n, whole_numbers("The permutation", permutation)
    if sorted(order) != list(range(n)):
        msg = f"{order} is not a permutation of the tokens 0..{n - 1} (0-based)."
        raise PatternError(msg)
    new = np.array(order)
    parts: list[Part] = []
    for part in pattern.parts:
        rows = part.rows()
        listed = Rows.of_pairs(n, new[rows.listeners()], new[rows.indices])
        parts.append(Gathered(n, listed))
    path = tuple(order[token] for token in pattern.path or range(n))
    return Pattern(f"{pattern.name}, relabelled", tuple(parts), path)


def _half(what: str, window: int) -> int:
    check_whole(what, 1, window=window)
    if window % 2 == 0:
        msg = f"{what} with window={window}: the own token is in the middle, so it is odd."
        raise PatternError(f"{msg} Use {window - 1} or {window + 1}.")
    return window // 2


def _global_tokens(n: int, tokens: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(tokens, Sequence):
        return tuple(sorted(whole_numbers("The list of global tokens", tokens)))
    check_whole("global tokens", 1, global_tokens=tokens, n=n)
    return tuple(range(min(tokens, n)))


def _random_keys(n: int, keys: int, seed: int) -> Rows:
    """`keys` different tokens for each of n, drawn uniformly from all n."""
    check_whole("random keys", 1, n=n, keys=keys)
    check_whole("random keys", 0, seed=seed)
    if keys > n:
        msg = f"{keys} different keys cannot be drawn from n={n} tokens. Give at most {n}."
        raise PatternError(msg)
    rng = np.random.default_rng(seed)
    drawn = [rng.choice(n, keys, replace=False) for _ in range(n)]
    return Rows.of_pairs(n, np.repeat(np.arange(n), keys), np.concatenate(drawn))


def _gathered(n: int, heard: np.ndarray) -> Gathered:
    """The part in which row k of a table lists A_k; tokens outside [n] are left out."""
    inside = (heard >= 0) & (heard < n)
    listeners = np.broadcast_to(np.arange(n)[:, None], heard.shape)[inside]
    return Gathered(n, Rows.of_pairs(n, listeners, heard[inside]))
