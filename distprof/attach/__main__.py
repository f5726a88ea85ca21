"""``python -m distprof.attach [OVERRIDES] -- SCRIPT [ARGUMENTS]``, also ``-m MODULE``."""

from distprof.attach.command import attach

if __name__ == "__main__":
    attach()
