"""OpenAI's Responses API: a response is a job, its events are a pure function of the job's log."""
