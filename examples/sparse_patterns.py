"""Sparse patterns: which of them are enough?

Token k attends to a few tokens instead of all. Yun et al. 2020b prove that O(n) connections
are expressive enough, under Assumption 1 on the pattern. The library decides it.
"""

# %%
import numpy as np

import everyformer as ef
from everyformer import patterns

# %% [markdown]
# ## A pattern that is universal
#
# `strided` has two parts, which blocks use in turn: a window, and steps of a fixed width.

# %%
strided = patterns.strided(16, 4)
print(ef.check(strided))
figure = strided.picture()

# %% [markdown]
# ## A trap
#
# The `fixed` pattern of the Sparse Transformer, where the width does not divide n: nobody
# hears the last tokens. The report names the pair, and a function that no network with this
# pattern approximates. `repaired=True` adds the missing summary.

# %%
report = ef.check(patterns.fixed(14, 4))
print(report.verdict, "-", report.lp)
print(ef.check(patterns.fixed(14, 4, repaired=True)).verdict)

# %% [markdown]
# ## A graph of your own
#
# Masks, edges, or a graph of networkx. Here every token hears its neighbours on a ring, and
# one more token across.

# %%
across = np.eye(8, dtype=bool)
for k in range(8):
    across[k, [(k + 1) % 8, (k - 1) % 8, (k + 4) % 8]] = True
mine = patterns.from_masks(across)
found = ef.check(mine)
hops = found.assumption_1.hops
print(f"{found.verdict}: after {hops} layers every token has heard every token")

# %% [markdown]
# ## And the network
#
# Theorem 1 is a construction too. Four pixels of a 2 x 2 image attend along rows, then
# along columns, and compute their contrast with the mean of the image.


# %%
def contrast(x: np.ndarray) -> np.ndarray:
    """Every pixel minus the mean of the image."""
    return x - x.mean(axis=-2, keepdims=True)


target = ef.Target(contrast, seq_len=4, d_model=1)
built = ef.construct(target, grid=4, method=ef.SparseShifts(patterns.axial(2, 2)))
print(str(built.certificate).splitlines()[0])
pixels = np.array([[0.1], [0.7], [0.4], [0.95]])
print("f(x) =", contrast(pixels).ravel())
print("g(x) =", built.network(pixels).ravel())
