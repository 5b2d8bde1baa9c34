"""The output of a simulation: events, summary, and the page with its charts."""
