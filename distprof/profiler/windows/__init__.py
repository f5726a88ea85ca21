"""Steps that are looked at more closely: when, on whose order, and what is kept of them."""
