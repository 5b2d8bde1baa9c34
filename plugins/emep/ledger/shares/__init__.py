"""Fair shares as operators see and change them: the tree, its deficits, and overrides of weights."""
