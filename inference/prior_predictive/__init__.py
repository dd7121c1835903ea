"""What priors predict: trees drawn from a prior, and targets drawn with them."""
