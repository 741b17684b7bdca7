"""The nouns of tertulia: immutable values without I/O, on which every other package stands."""
