"""Requests for text: read, checked, and their fields as those of a job."""
