"""What an API server keeps in memory, so that common requests ask the database little or nothing."""
