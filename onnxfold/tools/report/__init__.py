"""Reports: what a run did, and the tables that show it."""
