"""The equations: layers, attention, encoders, decoders, and the whole model."""
