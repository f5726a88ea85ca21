"""A training loop seen from outside: which calls of torch begin and end its steps and phases."""
