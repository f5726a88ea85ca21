"""How ranges are called that distprof and torch.profiler put around what a process does."""

OWN_DOMAIN = "distprof"
"""The NVTX domain of distprof's own ranges, which are named after phases and carry the step as payload."""
OWN_PREFIX = "distprof."
"""Prefix of distprof's own annotations in a kernel window."""
OWN_MODULE = "distprof.module."
"""Prefix of distprof's own annotations around the calls of modules; the module's name and, after a colon, its class
follow."""
MODULE_DOMAIN = "module"
"""The domain of the calls of modules that torch.profiler itself annotates, which are named after class and number."""
OWN_MEASURED = "measured"
"""distprof's range around the measured steps, which a tool can be told to capture; neither a phase nor a step."""
