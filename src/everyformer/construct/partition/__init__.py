"""A softmax partition of unity over anchors, which are prefix tokens."""
