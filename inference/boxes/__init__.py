"""The exact posterior over trees of few levels, from the statistics of boxes."""
