"""What draws predict: replicated data, and training rows each from all others."""
