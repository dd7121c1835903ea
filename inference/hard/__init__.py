"""Hard trees: shapes of many trees as arrays, posterior draws and predictions."""
