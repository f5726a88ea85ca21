"""How often the verdict is right on parallel jobs that know nothing of distprof, under attach."""
