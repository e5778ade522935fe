"""The words everything else speaks: errors, the registry of parts, and the contracts between them."""
