"""How often the verdict is right on simulated jobs, and what a report of many ranks takes."""
