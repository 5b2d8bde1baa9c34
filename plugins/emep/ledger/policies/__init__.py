"""The policy in force: the file, its versions, and the weights set over it."""
