"""Cards, rigs and what becomes of them: pure numpy, seeded, without a clock."""
