"""The evolution engines: search a recipe's parameters in generations (ask, candidates, tell) and report."""
