"""Carrying out a merge plan: into files, or into memory."""
