"""What a call cost."""

from __future__ import annotations

from diarist.chunks import Usage

_PRICE_LISTS = {
    "openai-responses": "openai",
    "bedrock": "aws",
    "google-cloud": "google",
    "xai": "x-ai",
}
"""Names under which the price list knows our providers, where they differ."""


def cost(model_id: str, usage: Usage) -> float | None:
    """US dollars for one call of ``model_id`` (``"openai/gpt-5-mini"``); None where no price is known.

    Prices are the list prices that the installed ``genai-prices`` package carries, looked up offline:
    cached, cache-write and plain tokens each at their own price, no discounts of an account. Some prices
    rise with the length of a prompt, so add up the costs of several calls rather than their usage.
    """
    from genai_prices import Usage as PricedUsage
    from genai_prices import calc_price

    provider, _, name = model_id.partition("/")
    priced = PricedUsage(
        input_tokens=usage.input_tokens,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        output_tokens=usage.output_tokens,
    )
    try:
        return float(calc_price(priced, name, provider_id=_PRICE_LISTS.get(provider, provider)).total_price)
    except LookupError:
        return None
