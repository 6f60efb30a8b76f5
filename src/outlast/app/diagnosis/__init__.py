"""`outlast diagnose`: options, and a verdict as text, page and graph."""
