//! What a clean detach leaves so that the next attach need not scan: block map, inode map, slabs with free lines.
