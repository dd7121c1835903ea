"""What draws predict: replicated data, prior predictions and scores of predictions."""
