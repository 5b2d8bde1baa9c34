"""What a simulation leaves: events, summary, and the page with its charts."""
