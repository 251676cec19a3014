"""Reproduce an experiment.

Experiments of the papers are commands: `everyformer reproduce contextual-gap --size small`.
Here the smallest size runs from Python, in seconds, and then the stored results are read.
"""

# %%
import tempfile
from pathlib import Path

from everyformer.experiments.registry import EXPERIMENTS
from everyformer.experiments.reproduce import reproduce

# %% [markdown]
# ## The question
#
# Section 6 of Yun et al. 2020 asks whether something simpler than attention can give every
# token of every sequence an id of its own. Random weights, a finite set of sequences, and
# the least gap between two ids that should differ: 0 is a collision.

# %%
experiment = EXPERIMENTS["contextual-gap"]
folder = Path(tempfile.mkdtemp())
result = reproduce(experiment, "smoke", out=folder, runs=folder / "runs")
print(result.with_suffix(".md").read_text())

# %% [markdown]
# A smoke run says that everything runs, and is not judged. The stored results of the small
# size, with the machine and the commit that made them, are
# [here](../experiments/results/contextual-gap_small_cpu.md); what came out and under which
# conditions, for all experiments: [experiments](../docs/experiments.md).
