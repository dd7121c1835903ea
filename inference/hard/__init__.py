"""Hard trees: their log joint on arrays, posterior draws and what these predict."""
