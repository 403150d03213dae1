"""Anthropic's Messages API: a message is a job, its events are a pure function of the job's log."""
