"""The proof of Theorem 2, step by step.

Theorem 2 of Yun et al. 2020: Transformers approximate every continuous permutation
equivariant function of a sequence. The proof builds one, and here it runs, lemma by lemma.
"""

# %%
from itertools import combinations_with_replacement

import numpy as np

import everyformer as ef
from everyformer.cli.pictures import moving_ids

# %% [markdown]
# ## The function and its network
#
# n = 3 tokens of width d = 1, and a grid of K = 4 cells on [0, 1], each of width δ = 1/4.
# `smooth_rank` says, smoothly, how many tokens are smaller than each. A plan counts the
# layers before anything is built.

# %%
target = ef.targets.smooth_rank(3, 1)
print(ef.plan(target, grid=4))
built = ef.construct(target, grid=4)
network = built.network
x = np.array([[0.1], [0.5], [0.9]])  # three tokens as rows
states = {step.stage: step for step in network.trace(x)}

# %% [markdown]
# ## Lemma 5: feed-forward layers quantise
#
# Every token moves to the left end of its cell. From here on there are finitely many
# sequences, K^(nd) = 64.

# %%
print("x        =", x.ravel())
print("quantise =", states["quantise"].state.ravel())

# %% [markdown]
# ## Lemma 6: attention gives every token an id
#
# The ids begin as the tokens themselves. One *selective shift* for each grid point l, from
# the smallest up, moves the tokens whose id is l by δ^(-d) (max - min) of all ids at that
# moment. Its two heads find maximum and minimum. By hand:

# %%
ids = np.asarray(states["quantise"].ids, dtype=float)
for level in np.arange(4) / 4:
    moved = np.where(ids == level, ids + 4 * (ids.max() - ids.min()), ids)
    print(f"l = {level}: {ids} -> {moved}")
    ids = moved
print("the network:", states["selective shifts"].ids)

# %% [markdown]
# The largest id knows the whole sequence now: written in base K, it spells the tokens. A
# *global shift* adds K^((n+1)d) times that maximum to every token, so each knows it too.

# %%
print("by hand:    ", ids + 4**4 * ids.max())
print("the network:", states["global shift"].ids)
figure = moving_ids(network.trace_blocks(x, "selective shifts"), network)

# %% [markdown]
# **Definition 5.1** asks two things of a *contextual mapping*: ids of one sequence are
# distinct, and sequences that are not permutations of each other share no id. That is
# checked for all sequences up to order, in exact arithmetic.

# %%
sequences = np.array(list(combinations_with_replacement(np.arange(4) / 4, 3)))[..., None]
print(ef.contextual_mapping(network, sequences))

# %% [markdown]
# ## Lemma 7: feed-forward layers map ids to values
#
# An id names the token and its sequence, so a table from ids to values is all that is
# missing. Every entry takes one layer.

# %%
print("values =", network(x).ravel().round(4))
print("f(x)   =", target(x).ravel().round(4))

# %% [markdown]
# Permute the tokens, and the values are permuted. Give equal tokens, and the network gives
# 0: equal tokens have equal ids for any equivariant network, and the proof gives up cells
# with equal tokens, whose share vanishes as K grows.

# %%
print("reversed:", network(x[::-1]).ravel().round(4))
print("equal:   ", network(np.full((3, 1), 0.5)).ravel())

# %% [markdown]
# ## How far is it from f?
#
# The certificate is computed from the weights. At K = 4 cells with equal tokens are 62.5 %
# of the cube, and nearly all of the bound. What finer grids and other constructions reach:
# [compared](../docs/constructions/comparison.md).

# %%
print(built.certificate)

# %% [markdown]
# ## Run it yourself
#
# The page below runs this network in the browser: drag a token, step through the blocks, or
# take the tour.

# %%
page = built.explore()
