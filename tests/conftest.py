"""What holds for every test: no silent broadcasting, no window, the same examples each time."""

import os

# Before anything imports matplotlib, and for the processes that tests start.
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis
import jax

jax.config.update("jax_numpy_rank_promotion", "raise")

# Compilation makes a first example slow, which is no failure.
hypothesis.settings.register_profile("bdtppl", deadline=None, derandomize=True)
hypothesis.settings.load_profile("bdtppl")
