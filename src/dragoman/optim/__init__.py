"""How weights move: optimizers, and schedules of the learning rate."""
