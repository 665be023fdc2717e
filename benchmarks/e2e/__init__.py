"""The parts of ``benchmarks/end_to_end.py``: load, generator, processes, observers, peers."""
