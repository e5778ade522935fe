"""Views drawn: in a terminal, as an image, as a page, in a notebook."""
