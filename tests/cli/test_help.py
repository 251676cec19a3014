"""Help texts against snapshots; EVERYFORMER_SNAPSHOTS=write renews them."""

import os
from pathlib import Path

import pytest

