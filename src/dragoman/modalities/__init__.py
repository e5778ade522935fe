"""Sources that are files: images, audio, video and feature arrays, read as numbers at positions.

    name ─found in a folder or an archive→ bytes ─image.py, audio.py, video.py, features.py→ (S, F) numbers

A frontend (nn/frontends) turns the numbers into vectors. Its options say how the files are read.
"""
