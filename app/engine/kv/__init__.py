"""Keep track of KV pages: the pool, sequences' pages, names of shared ones, the cache's size."""
