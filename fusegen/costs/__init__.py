"""Which kernel computes a convolution or a matrix product, in which tiles, and its expected time."""
