"""The life of a job: submission, validation, cancellation, end, retry and dead letter."""
