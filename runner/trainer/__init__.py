"""The built-in training job: a small real one, that checkpoints, moves and goes on."""
