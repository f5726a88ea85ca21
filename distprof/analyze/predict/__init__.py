"""What would be: without a cause, with another setting, and between the jobs of a sweep."""
