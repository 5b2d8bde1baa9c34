"""Fair shares as operators see and change them."""
