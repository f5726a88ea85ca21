"""The tables that `nsys stats` prints, and the projection of ranges onto the GPU."""
