"""Formats of conversations, for help texts: to ask the readers themselves would load them all."""

FORMAT_NAMES = "claude-code, locomo, tau-bench, plain or openai"
