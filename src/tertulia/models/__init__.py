"""Models: the protocol, and the models themselves."""
