"""Drains Slurm nodes whose cards fail, requeues their jobs, and resumes what it drained."""
