//! Eviction from the mindex (paper III.G): directories that nobody references leave first-in first-out, with a second chance.
