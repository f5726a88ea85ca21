"""Windows of steps that are looked at more closely: who asks for them, when they are, and what is kept."""
