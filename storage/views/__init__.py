"""The views: tables in DuckDB that are folded from the events and can be thrown away and made again."""
