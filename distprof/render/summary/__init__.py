"""What a person reads first: the report on one screen, its card on the page, what to do next, and a running job."""
