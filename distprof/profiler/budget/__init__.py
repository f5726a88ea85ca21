"""What recording may cost, and how it is turned off and on."""
