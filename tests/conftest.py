"""Without a GPU, Triton interprets its kernels: it must hear of that before its import."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
