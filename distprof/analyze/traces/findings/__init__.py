"""Rules that find in a run's traces what is worth changing and what is easily misread, one file per section."""
