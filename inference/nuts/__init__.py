"""The no-U-turn sampler: many chains side by side."""
