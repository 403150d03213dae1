"""Requests for text: their checks, and their fields as those of a job."""
