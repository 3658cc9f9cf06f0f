"""Built-in processors for limits, caching, tools and patterns; ``diarist.processors`` exports them."""
