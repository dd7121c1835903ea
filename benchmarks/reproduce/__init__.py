"""Tables and figures of the papers, run again (`python -m benchmarks.reproduce`)."""
