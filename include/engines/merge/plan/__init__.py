"""From a recipe and its models' headers to a plan of every output tensor."""
