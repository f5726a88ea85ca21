"""What is recorded and said on a GPU, against made-up devices whose truth is known."""
