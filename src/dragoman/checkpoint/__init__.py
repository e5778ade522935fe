"""A model folder: config.yaml, model.safetensors, tokenizer files, and a manifest with checksums."""
