"""How often the verdict is right on real ranks of this machine."""
