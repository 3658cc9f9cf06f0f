"""``@tool``: the schema that a model gets of a function, and the arguments that the function gets."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, Optional
from uuid import UUID

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from diarist import Agent, Tool, ToolContext, tool
from diarist.exceptions import ConfigError, ToolError
from diarist.testing import ScriptedModel
from diarist.tools import as_tool

if TYPE_CHECKING:
    from nowhere import Missing  # pyright: ignore[reportMissingImports]


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Size:
    width: int
    height: int = 1


class Address(BaseModel):
    city: str
    zip: str | None = None


class Options(TypedDict):
    depth: int
    fast: NotRequired[bool]


CONTEXT: ToolContext[Any] = ToolContext(run=None, call_id="c", tool_name="t")  # pyright: ignore[reportArgumentType]


def bound(item: Tool | Callable[..., Any], args: dict[str, Any]) -> dict[str, Any]:
    """The arguments that the function gets, when it returns ``locals()``."""
    return as_tool(item).bind(args, CONTEXT)()


def everything(
    text: str,
    number: int,
    ratio: float,
    flag: bool,
    kind: Literal["a", "b"],
    color: Color,
    size: Size,
    address: Address,
    options: Options,
    day: date,
    at: datetime,
    price: Decimal,
    key: UUID,
    names: list[str],
    scores: dict[str, int],
    pair: tuple[int, str],
    maybe: int | None,
    old: Optional[str] = None,  # noqa: UP045 - the old spelling has to work too
    limit: Annotated[int, Field(ge=1, le=9, description="how many")] = 3,
    anything: Any = None,
) -> dict[str, Any]:
    """Take everything."""
    return locals()


WRITTEN = {
    "text": "x",
    "number": "3",
    "ratio": 1,
    "flag": "true",
    "kind": "a",
    "color": "red",
    "size": {"width": 2},
    "address": {"city": "Rome"},
    "options": {"depth": 1},
    "day": "2026-05-01",
    "at": "2026-05-01T10:00:00Z",
    "price": "9.99",
    "key": "12345678-1234-5678-1234-567812345678",
    "names": ["a"],
    "scores": {"a": 1},
    "pair": [1, "b"],
    "maybe": None,
}


def test_typed_arguments() -> None:
    got = bound(everything, WRITTEN)
    assert got["number"] == 3
    assert got["ratio"] == 1.0
    assert got["flag"] is True
    assert got["color"] is Color.RED
    assert got["size"] == Size(2)
    assert got["address"] == Address(city="Rome")
    assert got["options"] == {"depth": 1}
    assert got["day"] == date(2026, 5, 1)
    assert got["at"].isoformat() == "2026-05-01T10:00:00+00:00"
    assert got["price"] == Decimal("9.99")
    assert got["key"] == UUID("12345678-1234-5678-1234-567812345678")
    assert got["pair"] == (1, "b")
    assert (got["maybe"], got["old"], got["limit"], got["anything"]) == (None, None, 3, None)


def test_the_schema_of_a_signature() -> None:
    schema = tool(everything).definition.parameters
    properties = schema["properties"]
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert list(properties) == list(everything.__annotations__)[:-1], "in the order of the signature"
    assert schema["required"] == list(WRITTEN), "those without a default"
    assert properties["kind"] == {"enum": ["a", "b"], "type": "string"}
    assert properties["limit"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 9,
        "default": 3,
        "description": "how many",
    }
    assert schema["$defs"]["Color"]["enum"] == ["red", "blue"]
    assert schema["$defs"]["Options"]["required"] == ["depth"]


def test_name_and_description() -> None:
    @tool
    def get_weather(city: str) -> str:
        """Current weather.

        In a city.
        """
        return city

    assert get_weather.definition.name == "get_weather"
    assert get_weather.definition.description == "Current weather.\n\nIn a city."
    named = tool(name="other", description="Else.", timeout=3)(get_weather.function)
    assert (named.definition.name, named.definition.description, named.timeout) == ("other", "Else.", 3)
    assert get_weather("Rome") == "Rome", "it is still a function"


def test_a_function_without_parameters() -> None:
    def now() -> str:
        """Now."""
        return "now"

    parameters = tool(now).definition.parameters
    assert (parameters["type"], parameters["properties"]) == ("object", {})
    with pytest.raises(ToolError, match="extra: Extra inputs are not permitted"):
        tool(now).bind({"extra": 1}, CONTEXT)


def test_parameters_without_a_type_take_anything() -> None:
    def free(x, y=2):  # pyright: ignore
        """Free."""
        return locals()  # pyright: ignore

    assert bound(free, {"x": [1]}) == {"x": [1], "y": 2}  # pyright: ignore
    assert tool(free).definition.parameters["required"] == ["x"]  # pyright: ignore


def test_parameters_may_be_called_what_they_like() -> None:
    def query(json: str, schema: str, copy: bool, model_name: str, _hidden: int, self: int, model_config: int) -> Any:
        """Names that a pydantic model keeps for itself."""
        return locals()

    args = {"json": "a", "schema": "b", "copy": True, "model_name": "c", "_hidden": 1, "self": 2, "model_config": 3}
    assert bound(query, args) == args
    assert list(tool(query).definition.parameters["properties"]) == list(args)
    with pytest.raises(ToolError, match="_hidden: Input should be a valid integer"):
        tool(query).bind({**args, "_hidden": "x"}, CONTEXT)


def test_keyword_only_parameters_and_defaults() -> None:
    def search(q: str, *, limit: int = 5, tags: list[str] = []) -> Any:  # noqa: B006 - it must not be shared
        """Search."""
        tags.append("seen")
        return locals()

    assert bound(search, {"q": "x"}) == {"q": "x", "limit": 5, "tags": ["seen"]}
    assert bound(search, {"q": "x"}) == {"q": "x", "limit": 5, "tags": ["seen"]}


def test_the_context_is_not_shown_to_the_model() -> None:
    def one(x: int, context: ToolContext[str]) -> Any:
        """One."""
        return locals()

    def optional(x: int, context: ToolContext[Any] | None = None) -> Any:
        """Two."""
        return locals()

    def twice(a: ToolContext, x: int, b: Annotated[ToolContext[str], "noted"]) -> Any:  # pyright: ignore
        """Three."""
        return locals()

    for function in (one, optional, twice):
        item = tool(function)
        assert list(item.definition.parameters["properties"]) == ["x"]
        assert all(value is CONTEXT for name, value in bound(item, {"x": 1}).items() if name != "x")
        with pytest.raises(ToolError, match="context: Extra inputs are not permitted"):
            item.bind({"x": 1, "context": {}}, CONTEXT)


def test_methods_partials_and_callable_objects() -> None:
    class Shop:
        factor = 2

        def price(self, amount: int) -> int:
            """Price."""
            return amount * self.factor

        async def __call__(self, amount: int) -> int:
            """Call."""
            return amount

    assert bound(Shop().price, {"amount": "2"}) == 4  # pyright: ignore
    half = functools.partial(Shop().price)
    assert tool(name="half")(half).bind({"amount": "2"}, CONTEXT)() == 4
    shop = tool(name="shop")(Shop())
    assert asyncio.run(shop.bind({"amount": "2"}, CONTEXT)()) == 2  # pyright: ignore
    with pytest.raises(ConfigError, match="has no name"):
        as_tool(half)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({}, "text: Field required"),
        ({**WRITTEN, "kind": "c"}, "kind: Input should be 'a' or 'b'"),
        ({**WRITTEN, "color": "green"}, "color: Input should be 'red' or 'blue'"),
        ({**WRITTEN, "size": {"width": "wide"}}, "size.width: Input should be a valid integer"),
        ({**WRITTEN, "address": {}}, "address.city: Field required"),
        ({**WRITTEN, "options": {}}, "options.depth: Field required"),
        ({**WRITTEN, "limit": 10}, "limit: Input should be less than or equal to 9"),
        ({**WRITTEN, "colour": "red"}, "colour: Extra inputs are not permitted"),
    ],
)
def test_invalid_arguments_name_the_mistake(args: dict[str, Any], says: str) -> None:
    with pytest.raises(ToolError, match="invalid arguments for everything: ") as raised:
        tool(everything).bind(args, CONTEXT)
    assert says in str(raised.value)


# -- what is refused, when the agent is built


class Opaque:
    """A class without a schema."""


def variadic(*names: str) -> None:
    """Refused."""


def keywords(**options: str) -> None:
    """Refused."""


def positional(x: int, /) -> None:
    """Refused."""


def opaque(good: int, thing: Opaque) -> None:
    """Refused."""


def opaque_inside(good: int, things: list[Opaque]) -> None:
    """Refused."""


def function_argument(good: int, then: Callable[[int], int]) -> None:
    """Refused."""


def unresolved(good: int, bad: Missing) -> None:
    """Refused."""


@pytest.mark.parametrize(
    ("function", "parameter"),
    [
        (variadic, "names"),
        (keywords, "options"),
        (positional, "x"),
        (opaque, "thing"),
        (opaque_inside, "things"),
        (function_argument, "then"),
        (unresolved, "bad"),
    ],
)
def test_a_signature_that_cannot_be_shown_is_refused_with_tool_and_parameter(function: Any, parameter: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Agent(model=ScriptedModel("x"), tools=[function])
    assert f"tool {function.__name__!r}" in str(raised.value)
    assert f"{parameter!r}" in str(raised.value)


@pytest.mark.parametrize("builtin", [int, max])
def test_a_builtin_without_a_signature_is_refused_with_the_remedy(builtin: Any) -> None:
    with pytest.raises(ConfigError, match=f"tool {builtin.__name__!r} has no readable signature; write a function"):
        Agent(model=ScriptedModel("x"), tools=[builtin])


@pytest.mark.parametrize("name", ["", "with space", "ünicode", "a" * 65, "dot.ted"])
def test_names_that_providers_refuse(name: str) -> None:
    with pytest.raises(ConfigError, match="tool name"):
        Tool(name=name, function=lambda: None)


def test_parameters_that_are_no_schema_are_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"write its fields below \"properties\": {\"properties\": {'city': ...}}"):
        Tool(name="weather", parameters={"city": {"type": "string"}})
    Tool(name="any", parameters={"type": "object", "additionalProperties": {"type": "string"}})
    given: Any = BaseModel
    with pytest.raises(ConfigError, match=r"tool 'weather': parameters must be a JSON schema .*model_json_schema\(\)"):
        Tool(name="weather", parameters=given)


def test_a_lambda_has_no_name_to_show() -> None:
    with pytest.raises(ConfigError, match=r"<lambda>.* has no name; write tool\(name=...\)"):
        as_tool(lambda: None)


def test_a_name_without_a_keyword_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tool\(\) takes a function, not 'price'; write its options with names"):
        tool("price")  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_a_method_decorated_in_its_class_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tool 'price' is a method; .* tools=\[obj.price\]"):

        class Shop:  # pyright: ignore[reportUnusedClass]
            @tool
            def price(self, amount: int) -> int:
                """Price."""
                return amount


def test_a_type_without_a_schema_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="use a Pydantic model, a dataclass, a TypedDict") as raised:
        _ = tool(opaque).definition
    assert "\n" not in str(raised.value)


def test_objects_that_are_not_tools() -> None:
    with pytest.raises(ConfigError, match="not a tool: 7"):
        as_tool(7)  # pyright: ignore[reportArgumentType]
