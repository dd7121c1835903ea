"""How arrays are kept and computed: precision, padding, bits, threads."""
