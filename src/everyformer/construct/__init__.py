"""From a function to Transformer weights: one module for a step of a proof."""
