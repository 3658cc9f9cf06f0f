"""Guardrails: processors that judge or redact input and output; ``diarist.processors`` exports them."""
