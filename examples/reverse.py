"""A function of the order of tokens, built by Theorem 3 of Yun et al. 2020."""

# %% [markdown]
# The sequence backwards is not permutation equivariant, so the network adds positions to
# its input. The domain here is a box of its own, not [0, 1]. The same from the shell:
#
#     everyformer construct examples/reverse.py:target --grid 16 -o out/

# %%
import numpy as np

import everyformer as ef


def reverse(x: np.ndarray) -> np.ndarray:
    """The last token first; x has shape (batch, n, d)."""
    return x[..., ::-1, :]


# %%
target = ef.Target(reverse, seq_len=2, d_model=1, lipschitz=1, domain=[(-1, 1)])

# %%
if __name__ == "__main__":
    built = ef.construct(target, grid=16)
    print(built.plan)
    print(built.certificate)
    x = np.array([[-0.7], [0.4]])  # two tokens as rows
    print("f(x) =", reverse(x).ravel())
    print("g(x) =", built.network(x).ravel())
