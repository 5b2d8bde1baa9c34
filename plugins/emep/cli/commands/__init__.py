"""One module for each command of ``emep``: ``add_arguments`` and ``run``."""
