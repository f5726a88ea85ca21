"""Training loops of the bench's own, written as a user of distprof writes them, and the process of one of their ranks.

Each has one function ``train(stage)``. What is not a user's code is called on the `stage.Stage`: it says which step
comes next, delays one rank, and measures what that costs.
"""
