"""Whole models: encoders, an encoder-decoder, Transformer-XL, and what they are made of."""
