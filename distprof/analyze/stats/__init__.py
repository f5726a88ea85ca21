"""Facts about measured steps, and the statistics that everything above uses."""
