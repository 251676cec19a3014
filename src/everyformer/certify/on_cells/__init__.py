"""Networks that are constant on the cells of a grid: how far they are from f."""
