"""A permutation equivariant function, built by Theorem 2 of Yun et al. 2020."""

# %% [markdown]
# Every token becomes the mean of all tokens minus half of itself. Permuting the tokens
# permutes the result, so no positions are needed. The same from the shell:
#
#     everyformer construct examples/swap_mean.py:target --grid 16 -o out/

# %%
import numpy as np

import everyformer as ef


def swap_mean(x: np.ndarray) -> np.ndarray:
    """The mean of the tokens minus half the token; x has shape (batch, n, d)."""
    return x.mean(-2, keepdims=True) - 0.5 * x


# %% [markdown]
# An entry has weight 1/3 - 1/2 on itself and 1/3 on the two others: 5/6 in all, so 1.5 is
# a Lipschitz constant with room to spare.

# %%
target = ef.Target(swap_mean, seq_len=3, d_model=1, lipschitz=1.5, equivariant=True)

# %%
if __name__ == "__main__":
    built = ef.construct(target, grid=16)
    print(built.plan)
    print(built.certificate)
    x = np.array([[0.1], [0.5], [0.9]])  # three tokens as rows
    print("f(x) =", swap_mean(x).ravel())
    print("g(x) =", built.network(x).ravel())
