"""Work on token trees: move accepted keys and values, drop rows, walk and fuse."""
