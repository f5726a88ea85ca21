"""A report as sections, tables and sentences, which terminal, page and W&B lay out."""
