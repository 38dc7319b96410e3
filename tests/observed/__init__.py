"""Random sequences of runs of sessions that hold inputs constant when they repeat."""
