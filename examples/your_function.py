"""Your function, certified.

A function written in numpy becomes a Transformer with a proved bound; the bound is checked
from files, as somebody else would, and a network that was changed does not pass.
"""

# %%
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

import everyformer as ef

# %% [markdown]
# ## A function
#
# Any function of n tokens of width d, in numpy, over arrays of shape (..., n, d). This one
# divides tokens by their root mean square, and then lets them look at each other.


# %%
def settle(x: np.ndarray) -> np.ndarray:
    """Tokens of equal size, each pulled to those that are like it."""
    z = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1 / 16)
    weights = np.exp(z @ np.swapaxes(z, -1, -2))
    return (weights / weights.sum(axis=-1, keepdims=True)) @ x


target = ef.Target(settle, seq_len=4, d_model=2)

# %% [markdown]
# ## Which construction?
#
# The papers' constructions tabulate f on K^(nd) cells, and nd = 8 is too much for them.
# `method="auto"` plans all constructions and builds the one with the fewest parameters that
# meets the tolerance; here it is `compile`, which translates the operations of f.

# %%
built = ef.construct(target, tol=1e-3, method="auto")
print(built.plan)

# %% [markdown]
# ## The certificate
#
# Every number in it is an upper bound, rounded up, and computed from the weights.

# %%
print(built.certificate)
x = np.random.default_rng(0).random((10_000, 4, 2))
print(f"measured at 10,000 points: {np.abs(built.network(x) - settle(x)).max():.1e}")

# %% [markdown]
# ## Somebody else checks it
#
# A folder holds weights and certificate. `verify` reads them, believes nothing that stands
# there, runs no code of yours, and proves the bound again. In the shell:
# `everyformer verify out/`.

# %%
folder = Path(tempfile.mkdtemp()) / "out"
built.save(folder)
print(sorted(path.name for path in folder.iterdir()))
print(ef.verify(folder).verdict)

# %% [markdown]
# One matrix changed by a thousandth, and there is no proof. The old certificate would not
# be accepted beside it either: it holds a hash of the weights.

# %%
arrays = dict(built.network.arrays())
arrays["stages.0.attention.W_O"] = arrays["stages.0.attention.W_O"] * (1 + 1e-3)
changed = replace(built, network=built.network.with_arrays(arrays), proved=None)
print(changed.certificate.verdict, changed.certificate.obstacles[0])
