"""Reports about runs, models and bundles, as tables and as HTML pages."""
