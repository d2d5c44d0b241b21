"""The generated module against the reference: numerics, times, tuning."""
