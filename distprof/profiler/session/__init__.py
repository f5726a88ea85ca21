"""What a training loop is given, and the border behind which nothing of it raises."""
