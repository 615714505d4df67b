"""Files of harvested activations: Parquet shards, their statistics and their manifest, in a folder or a bucket."""
