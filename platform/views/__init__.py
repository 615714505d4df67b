"""The views process: projects the events into DuckDB, and answers from there."""
