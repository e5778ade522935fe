"""What a run and an evaluation tell a person: scores, errors, confusions, calibration, and a model card."""
