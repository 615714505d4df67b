"""The ledger: the one process that writes events, its memory of them, and what it tells the others."""
