"""A few steps that are looked at more closely: kernels, ranges, captures."""
