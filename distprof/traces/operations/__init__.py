"""Tables of operations of pipeline-parallel jobs: their layouts, and how they are read."""
