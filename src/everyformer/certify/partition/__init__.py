"""Networks whose softmax averages over anchors."""
