"""Texts that try to take control of the assistant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from diarist.exceptions import ConfigError
from diarist.messages import as_text
from diarist.models.base import Model
from diarist.processors.base import ProcessToolResultArgs, ToolResultResult
from diarist.processors.builtin.options import flags, share
from diarist.processors.guardrails import injection_patterns
from diarist.processors.guardrails.classifier import Classify, make_classifier
from diarist.processors.guardrails.guard import Finding, InputGuard, OnError
from diarist.processors.guardrails.injection_patterns import DETECTION_TYPES
from diarist.processors.guardrails.moderation import describe, flagged
from diarist.processors.guardrails.prompts import load_prompt
from diarist.processors.guardrails.verdict import FLAGGED, Verdict


class PromptInjectionDetector(InputGuard):
    """Finds attempts at prompt injection in the input and, among the output processors, in what tools return.

    Patterns come first and cost nothing. A model or function is asked only about texts that they do not flag.

    Args:
        model: A classifier for what patterns do not see: an id or a ``Model``. Or:
        classifier: A function of the text that returns type to score (0 to 1), a bool, or a ``Verdict``.
        detection_types: Which of ``injection``, ``jailbreak``, ``system-override`` and ``tool-exfiltration`` to
            look for. Default: all. With a model or function, others of your own as well.
        threshold: Scores from here on are flagged. Default 0.7.
        strategy: ``"block"`` (default): the run ends with a tripwire whose metadata has ``categories`` and
            ``scores``. ``"warn"``: a log line and a ``data-prompt-injection`` chunk. ``"filter"``: the message is
            removed, a tool's result becomes an error. ``"rewrite"``: the text goes on without the attempt, in
            the model's words, or less the sentences that a pattern matched; where none is left, as ``"filter"``.
        instructions: Added to the model's task.
        last_message_only: Judge only the last message of the input. Default False.
        tool_results: Judge tools' results. Default True.
        on_error: ``"fail"`` (default): a text that could not be judged blocks. ``"continue"``: it passes.
        run_in_parallel: Judge the input beside the first model call, with ``block`` and ``warn``. Default False.

    Raises:
        ConfigError: An option out of its range, or a detection type that nobody here detects.

    Example::

        Agent(model="openai/gpt-5-mini", processors=[PromptInjectionDetector(strategy="block")])
    """

    data_type = "data-prompt-injection"
    edits_in_place = False

    def __init__(
        self,
        model: str | Model | None = None,
        *,
        classifier: Classify | None = None,
        detection_types: Sequence[str] | Mapping[str, str] | None = None,
        threshold: float = 0.7,
        strategy: Literal["block", "warn", "filter", "rewrite"] = "block",
        instructions: str = "",
        last_message_only: bool = False,
        tool_results: bool = True,
        on_error: OnError = "fail",
        run_in_parallel: bool = False,
    ) -> None:
        name = "PromptInjectionDetector"
        super().__init__(
            strategy=strategy,
            strategies=("block", "warn", "filter", "rewrite"),
            on_error=on_error,
            run_in_parallel=run_in_parallel,
            last_message_only=last_message_only,
        )
        share(name, "threshold", threshold)
        flags(name, tool_results=tool_results)
        types = describe(name, detection_types, DETECTION_TYPES, option="detection_types")
        if model is None and classifier is None and (unknown := types.keys() - DETECTION_TYPES.keys()):
            raise ConfigError(
                f"{name}: no pattern detects {', '.join(sorted(unknown))}; give a model or classifier that does, or "
                f"choose from {', '.join(DETECTION_TYPES)}"
            )
        self.threshold = threshold
        self.tool_results = tool_results
        self._types = types
        self._classifier = make_classifier(
            name,
            model,
            classifier,
            categories=types,
            task=load_prompt("prompt_injection"),
            instructions=instructions,
            answer_text=strategy == "rewrite",
        )

    async def close(self) -> None:
        if self._classifier is not None:
            await self._classifier.close()

    async def examine(self, text: str) -> Finding | None:
        """The types over the threshold, by patterns or, failing these, by the classifier."""
        verdict = self._by_patterns(text)
        if self._classifier is not None and not verdict.over(self.threshold):
            judged = await self._classifier.judge(text)
            known = judged.of((*self._types, FLAGGED)).scores
            verdict = Verdict(scores={**verdict.scores, **known}, reason=judged.reason, text=judged.text)
        finding = flagged("the text tries to take control", verdict, self.threshold)
        if finding is None or self.strategy != "rewrite":
            return finding
        return Finding(reason=finding.reason, metadata=finding.metadata, text=self._rewritten(text, verdict))

    async def process_tool_result(self, args: ProcessToolResultArgs[Any]) -> ToolResultResult | None:
        """Judge what a tool returned, before the model sees it."""
        call = args.call
        text = as_text(call.result)
        outcome = await self.passed(args, text, "tool-result") if self.tool_results else text
        if isinstance(outcome, str):
            return None
        rewritten = (outcome.text or "").strip() if self.strategy == "rewrite" else ""
        if not rewritten:
            return {"error": f"the result of {call.name} was withheld: {outcome.reason}"}
        return {"result": rewritten} if call.state == "result" else {"error": rewritten}

    def _by_patterns(self, text: str) -> Verdict:
        scores = {name: value for name, value in injection_patterns.score(text).items() if name in self._types}
        return Verdict(scores=scores, reason="it matches known patterns" if scores else "")

    def _rewritten(self, text: str, verdict: Verdict) -> str | None:
        """A text that the patterns have nothing against; None where there is none."""
        rewritten = verdict.text or injection_patterns.without_matches(text)
        clean = bool(rewritten) and rewritten != text and not self._by_patterns(rewritten).over(self.threshold)
        return rewritten if clean else None
