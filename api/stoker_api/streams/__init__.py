"""Long answers: a job's events and its logs, followed over Server-Sent Events or as plain bytes."""
