"""Files for other programs: tables, and the timeline."""
