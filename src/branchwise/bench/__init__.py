"""Measuring: prompts, methods side by side, agreement, and where a result came from."""
