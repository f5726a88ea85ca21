"""What a rank knows of its job: the other ranks, the folder, the model, the versions."""
