"""Work that is cut into shards: by one process, an array of jobs, or the workers of a cluster."""
