"""An agent refuses a processor that no stage of a run would call, since it would let everything pass."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent, Processor, processor
from diarist.exceptions import ConfigError
from diarist.processors import ModerationProcessor, RegexFilter, TokenLimiter, UnicodeNormalizer
from diarist.processors.compose import Branch, Parallel, Sequence
from diarist.testing import ScriptedModel


class Judge(Processor[Any]):
    def process_output_step(self, args: Any) -> None:
        args.abort("no")


class Typo(Processor[Any]):
    def process_ouput_step(self, args: Any) -> None:
        args.abort("no")


class Holds(Processor[Any]):
    hold_output = True

    def process_input(self, args: Any) -> None: ...


class Nothing(Processor[Any]):
    """Does nothing."""


class Careless(Judge):
    on_error = "contnue"  # type: ignore[assignment]


def plain_function(args: Any) -> None: ...


def on_the_object() -> Processor[Any]:
    guard = Judge()
    guard.process_input = lambda args: args.abort("no")  # type: ignore[method-assign]
    return guard


def make(**lists: Any) -> Agent:
    return Agent(model=ScriptedModel(lambda request: "said"), **lists)


REMEDY = "put it into processors="


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        ({"processors": [Typo()]}, "'typo' has a method process_ouput_step.* is process_output_step meant"),
        ({"processors": [Sequence(Judge(), Typo())]}, "'typo' has a method process_ouput_step"),
        ({"processors": [plain_function]}, "<function plain_function.*decorate it, such as with @processor.input_step"),
        ({"processors": [Nothing()]}, "'nothing' has no hook.* override one of process_input, "),
        ({"output_processors": [Nothing()]}, "'nothing' has no hook"),
        (
            {"error_processors": [Judge()]},
            f"error_processors: .*'judge' has none of .*process_api_error.*{REMEDY}",
        ),
        ({"input_processors": [Judge()]}, f"input_processors: processor 'judge' has none of .*{REMEDY}"),
        ({"input_processors": [Sequence(UnicodeNormalizer(), Judge())]}, rf"'judge' in 'sequence\(.*{REMEDY}"),
        ({"input_processors": [Branch((bool, UnicodeNormalizer()), default=Parallel(Judge()))]}, "'judge' in 'branch"),
        ({"input_processors": [Holds()]}, f"'holds' has hold_output, which has no effect there; {REMEDY}"),
        ({"input_processors": [Sequence(Holds())]}, "'holds' in .* has hold_output"),
        (
            {"input_processors": [TokenLimiter(9, output_limit=9)]},
            f"'token-limiter' has output_limit, which .*{REMEDY}",
        ),
        ({"input_processors": [Sequence(TokenLimiter(9, output_limit=9))]}, "in 'sequence.* has output_limit, which"),
        ({"input_processors": [RegexFilter(phases=["output"])]}, r"'regex-filter' has phases=\('output',\), which"),
        ({"processors": [on_the_object()]}, "'judge' has process_input set on the object.*@processor.input"),
        ({"processors": [Careless()]}, "'careless' has on_error='contnue'; allowed: 'fail', 'continue'"),
        ({"processors": [Parallel(Careless())]}, "'careless' has on_error='contnue'"),
    ],
)
async def test_a_processor_without_any_hook_is_refused(lists: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make(**lists)
    with pytest.raises(ConfigError, match=says):
        await make().generate("hi", **lists)
    with pytest.raises(ConfigError, match=says):
        await make(**{name: lambda context, given=given: given for name, given in lists.items()}).generate("hi")


class Helpers(Judge):
    """Methods of its own whose names begin like those of hooks."""

    process_everything = True

    def process_text(self, text: str) -> str:
        return text

    def process_output_chunk(self) -> None: ...

    def process_message(self) -> None: ...


class Both(Judge):
    def process_input(self, args: Any) -> None: ...


class Errors(Processor[Any]):
    def process_api_error(self, args: Any) -> None: ...


class HoldsAlone(Processor[Any]):
    hold_output = True


TWICE = Both()
HELD = Holds()


@pytest.mark.parametrize(
    "lists",
    [
        {"processors": [Helpers(), Errors(), HoldsAlone(), Holds()]},
        {"input_processors": [Both()]},
        {"input_processors": [Errors()], "output_processors": [HoldsAlone()]},
        {"input_processors": [TWICE], "output_processors": [TWICE]},
        {"input_processors": [HELD], "output_processors": [HELD]},
        {"input_processors": [Sequence(TWICE)], "output_processors": [Sequence(TWICE)]},
        {"input_processors": [ModerationProcessor(classifier=lambda text: 0.0)]},
        {"processors": [processor.output_step(on_error="continue")(lambda args: None)]},
    ],
)
def test_a_hook_that_some_processor_has_is_called(lists: Any) -> None:
    make(**lists)
