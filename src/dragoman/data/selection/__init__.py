"""Select pairs: split, remove duplicates, filter, sample; similarity.py and groups.py are what they share."""
