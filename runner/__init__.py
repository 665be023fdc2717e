"""Decision → migration: jobs, where they run, and how they leave a failing card."""
