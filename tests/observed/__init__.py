"""Random sequences of runs of sessions that treat repeated inputs as runtime constants."""
