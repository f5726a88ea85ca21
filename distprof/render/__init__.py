"""Shows a `distprof.report.report.Report`: in a terminal, as a page, to other programs. Shows, and computes nothing."""
