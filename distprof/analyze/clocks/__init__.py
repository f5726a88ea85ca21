"""How the clocks of hosts and devices relate, and how far a host runs ahead of its device."""
