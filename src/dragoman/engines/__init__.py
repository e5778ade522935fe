"""Engines: faster ways to the results of nn/ and search/, each beside their equations, never instead of them."""
