"""The conclusions about a run, as `report.json` stores them."""
