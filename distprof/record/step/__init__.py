"""The timeline of a rank's steps, on the clocks of host and device, down to its row."""
