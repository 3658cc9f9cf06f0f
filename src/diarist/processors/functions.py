"""Decorators that make a processor of a function, one for each hook, such as ``@processor.output_step``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, overload

from diarist.exceptions import ConfigError
from diarist.processors.base import Processor

Function = Callable[[Any], Any]

_OPTIONS = Processor.__annotations__.keys() - {"opens_run", "stores_run", "loads_history", "needs_history"}


class FunctionProcessor(Processor[Any]):
    """A processor with one function for one hook. Its id is the function's name in kebab case."""

    function: Function

    def __call__(self, args: Any) -> Any:
        """Call the function itself, as if it were not decorated."""
        return type(self).function(args)


class _Decorator:
    def __init__(self, hook: str) -> None:
        self._hook = hook

    @overload
    def __call__(self, function: Function, /) -> FunctionProcessor: ...
    @overload
    def __call__(self, **options: Any) -> Callable[[Function], FunctionProcessor]: ...
    def __call__(self, *given: Function, **options: Any) -> FunctionProcessor | Callable[[Function], FunctionProcessor]:
        if unknown := options.keys() - _OPTIONS:
            raise ConfigError(f"@processor.{self._hook}: unknown options {sorted(unknown)}; known: {sorted(_OPTIONS)}")

        def make(function: Function) -> FunctionProcessor:
            if not callable(function):
                raise ConfigError(f"@processor.{self._hook}: {function!r} is no function")
            name = getattr(function, "__name__", "function")
            values: dict[str, Any] = {
                "id": name.strip("_").replace("_", "-"),
                "description": inspect.getdoc(function) or "",
                f"process_{self._hook}": staticmethod(function),
                "function": staticmethod(function),
                "__doc__": function.__doc__,
                "__module__": function.__module__,
                **options,
            }
            return type(name, (FunctionProcessor,), values)()

        return make(given[0]) if given else make


class ProcessorDecorators:
    """``@processor.output_step`` makes a processor of a function; options of ``Processor`` go in parentheses::

    @processor.output_step(hold_output=True)
    def no_bad(args: ProcessOutputStepArgs) -> None:
        if "BAD" in args.text:
            args.abort("say GOOD", retry=True)
    """

    input = _Decorator("input")
    input_step = _Decorator("input_step")
    llm_request = _Decorator("llm_request")
    llm_response = _Decorator("llm_response")
    output_stream = _Decorator("output_stream")
    output_step = _Decorator("output_step")
    output_result = _Decorator("output_result")
    api_error = _Decorator("api_error")
    tool_call = _Decorator("tool_call")
    tool_result = _Decorator("tool_result")


processor = ProcessorDecorators()
