"""Why a job waits, its score and its estimated start."""
