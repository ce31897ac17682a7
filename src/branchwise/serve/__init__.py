"""The OpenAI-compatible server: HTTP in front of one engine. Needs the extra ``serve``."""
