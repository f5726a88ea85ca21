"""Is this machine ready for training and measuring? Facts are gathered once, and pure functions check them."""
