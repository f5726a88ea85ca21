"""Shows a `distprof.report.report.Report`: on a terminal, as a page, in other programs. Draws no conclusions."""
