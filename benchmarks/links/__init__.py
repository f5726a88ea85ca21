"""Real jobs on two hosts that a link of known speed joins: is it named where it is slow, and only there?"""
