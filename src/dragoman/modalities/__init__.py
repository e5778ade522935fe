"""Sources that are files: images, sounds and arrays, read as numbers at positions.

    name ─found in a folder or an archive→ bytes ─image.py, clips.py, audio.py, arrays.py→ (S, F) numbers

A frontend (nn/frontends) turns the numbers into vectors, and says by its options how they are read.
"""
