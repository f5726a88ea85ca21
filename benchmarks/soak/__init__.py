"""Jobs that are disturbed at random, started again by torchrun's elastic agent, and looked at after every event."""
