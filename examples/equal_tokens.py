"""What Theorem 2 of Luo et al. 2022 says, and what it does not.

An encoder with rotary positions learns to name the position of every token, as long as the
tokens differ. On equal tokens the same weights give the same output everywhere: attention
is a mean of values, and all values are one. Takes about ten seconds.
"""

import torch

from everyformer.data.batch import Draw
from everyformer.experiments.urpe_synthetic.tasks import Synthetic
from everyformer.layers import Encoder, EncoderConfig
from everyformer.train.config import TrainConfig
from everyformer.train.loop import train
from everyformer.train.objectives.labels import Labels

task = Synthetic("pi", seq_len=8, tokens=10, seed=0)
config = EncoderConfig(
    10, 8, dim=64, layers=2, heads=4, ffn=256, encoding="rotary", head="untied", labels=8
)
models: list[Encoder] = []


def build() -> Labels:
    """A label for every token; the model is kept."""
    models.append(Encoder(config))
    return Labels(models[0])


train(
    build,
    task,
    TrainConfig(
        steps=1000, batch=64, lr=1e-3, warmup=100, clip=1.0, evaluate_every=100,
        stop_at=0.9999,
    ),
    watch=lambda line: print(f"update {line['step']}: {line['accuracy']:.4f}")
    if "accuracy" in line
    else None,
)  # fmt: skip
model = models[0].cpu().double().eval()
words, positions, *_ = task.batch("test", Draw(torch.arange(1000), task.length))
with torch.no_grad():
    for kinds in (10, 2, 1):
        right = model(words % kinds).argmax(-1) == positions
        print(f"{kinds:2} kinds of tokens: {float(right.double().mean()):.4f} of positions")
    out = model(torch.zeros(1, 8, dtype=torch.long))
print(f"spread of the outputs on equal tokens: {float((out - out[:, :1]).abs().max()):.1e}")
