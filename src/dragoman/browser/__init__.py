"""Models in a browser: the data of a pipeline (`model_data`, `codec_data`), and ES modules that compute with them."""
