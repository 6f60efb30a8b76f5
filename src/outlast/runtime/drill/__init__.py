"""The runs of `outlast drill`: their places, what strikes them, and what is seen of them."""
