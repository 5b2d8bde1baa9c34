"""What starts the work of a job that no agent starts, one package for each runtime."""
