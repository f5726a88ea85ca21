"""The job in numbers: a table or a line of the report per file."""
