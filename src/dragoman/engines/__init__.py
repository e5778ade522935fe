"""Faster ways to the same results, each beside the equations of nn/ and search/, never instead of them."""
