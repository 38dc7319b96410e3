"""Random sequences of runs of sessions that hold repeated inputs constant."""
