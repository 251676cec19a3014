"""One attention layer whose softmax is a plain mean."""
