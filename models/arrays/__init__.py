"""Tools for arrays: precision, padding, bits, threads."""
