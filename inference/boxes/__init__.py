"""The exact posterior over trees of few levels, by statistics of boxes."""
