"""Text ↔ ids: vocabularies and tokenizers."""
