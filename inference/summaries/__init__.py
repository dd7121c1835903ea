"""What draws have in common, and whether they can be trusted."""
