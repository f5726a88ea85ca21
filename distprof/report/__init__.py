"""What is concluded from a run, and how `report.json` holds it."""
