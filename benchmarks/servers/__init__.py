"""The gateway beside another server of OpenAI's API, both under one load tool."""
