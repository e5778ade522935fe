"""What a model looked at, made visible: heat maps in the terminal, pictures in files."""

MAX_POSITIONS = 256  # in the view of positions: 65,536 numbers to send and to draw; the server knows it without torch
