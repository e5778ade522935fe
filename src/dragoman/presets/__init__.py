"""Named systems: config files and nothing else. The first line of each says what it is."""
