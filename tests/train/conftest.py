"""One thread for torch: models are tiny, and tests run side by side."""

from tests.layers.conftest import one_thread as one_thread
