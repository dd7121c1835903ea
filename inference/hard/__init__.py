"""Hard trees: their log joint on arrays, their prior, posterior draws and what these predict."""
