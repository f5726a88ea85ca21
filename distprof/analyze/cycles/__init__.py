"""From one wait to the next: what each rank did before every collective of every step."""
