"""What a model looked at, made visible: heat maps in the terminal, pictures in files."""
