"""Is this machine fit to train and to measure on? Facts are gathered once, and each check judges them, purely."""
