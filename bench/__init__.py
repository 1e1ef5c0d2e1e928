"""Measurements, one JSON line a workload. Run one at a time: `python -m bench.chain`."""
