"""Processors that handle errors of the model's provider; ``diarist.processors`` exports them."""
