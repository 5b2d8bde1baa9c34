"""Demo models: small, real, trained here."""
