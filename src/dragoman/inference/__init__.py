"""How a trained model is used: inputs, constraints, search, attention, many processes."""
