"""The event loop: a virtual clock around the production scheduler."""
