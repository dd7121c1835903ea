"""Array utilities: precision, padding, bits, threads."""
