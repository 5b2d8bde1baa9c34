"""Documents on the wire, states, errors and units. Every room may import them; they import none."""
