"""A quick look at a text, before patterns are tried on it: which of them may match at all?

All patterns together become one automaton over characters that forgets what is dear to check: look-arounds, anchors
and the exact number of repetitions. So it takes too much for a match and never too little; and a match counts as
going on for as long as what it looks at behind its end. The automaton's states are made when a text first leads to
them, after which a character costs one look into a dictionary.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

_COPIES = 4
"""Repetitions that are told apart; from there on it is any number."""

_MOST_NODES = 1000
_MOST_STEPS = 10_000
"""Remembered steps from state to state (about 1 MB), by character or by piece; then remembering starts anew."""

_LONGEST_PIECE = 32
"""Pieces of a text up to this length are remembered: a model's tokens come again and again."""

_NONE: frozenset[int] = frozenset()
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})
_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


class Prescan:
    """The automaton of some patterns; they go by their number in the list.

    Attributes:
        left_out: The patterns that it cannot follow, such as those that refer to a group. They always have to be tried.
    """

    def __init__(self, patterns: Sequence[re.Pattern[str]]) -> None:
        reader = _Reader()
        entries = {number: reader.read(pattern, number) for number, pattern in enumerate(patterns)}
        self._begin({number: entry for number, entry in entries.items() if entry is not None})
        self.left_out = frozenset(entries.keys() - self._entries.keys())

    def _begin(self, entries: dict[int, _Node]) -> None:
        self._entries = entries
        self._start = _closure(entries.values())
        self._states: dict[frozenset[_Node], _State] = {}
        self._steps = 0
        self._idle = _State(self, frozenset())

    def without(self, numbers: Collection[int]) -> Prescan:
        """The same without some of the patterns; the others keep their numbers."""
        scan = Prescan(())
        scan._begin({number: entry for number, entry in self._entries.items() if number not in numbers})
        return scan

    def only(self, number: int) -> Prescan:
        """The same with this pattern alone."""
        return self.without(self._entries.keys() - {number})

    def look(self, text: str, start: int, most: int | None = None) -> int | frozenset[int]:
        """The place in ``text`` before which no match begins that may still be going on at the end.

        Or the numbers of patterns that have to be tried, because they may have a complete match behind ``start``, or
        one that is going on for more than ``most`` characters. There may be others.
        """
        state = idle = self._idle
        place = first = start
        hits: frozenset[int] = _NONE
        for char in text[start:]:
            place += 1
            state = state[char]
            if state is idle:
                first = place
            elif state.hits:
                hits |= state.hits
        if hits:
            return hits
        if most is not None and place - first > most:
            return frozenset(node.number for node in state.nodes)
        return first

    def open_from(self, text: str, start: int) -> int:
        """The place in ``text`` before which no match begins that may still be going on at the end, or longer there;
        ``start`` where a pattern cannot be followed."""
        if not self._entries:
            return start
        state = idle = self._idle
        place = first = start
        for char in text[start:]:
            place += 1
            state = state[char]
            if state is idle:
                first = place
        return first

    def skim(self, most: int) -> PatternSkim | None:
        """The automaton at work on a text that comes in pieces; None where a pattern cannot be followed."""
        return None if self.left_out else PatternSkim(self, self._idle, most)

    def walk(self, state: _State, piece: str) -> _Walked:
        """Where ``piece`` leads: the state after it, None if some pattern has a complete match on the way; and how
        many characters since a match last began that is going on, -1 for all of them and more."""
        end, last, idle = state, -1, self._idle
        hit = False
        for place, char in enumerate(piece, 1):
            end = end[char]
            if end is idle:
                last = place
            elif end.hits:
                hit = True
                break
        walked = (None, 0) if hit else (end, -1 if last < 0 else len(piece) - last)
        if len(piece) <= _LONGEST_PIECE:
            self._remember()
            state.pieces[piece] = walked
        return walked

    def _remember(self) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            self._steps = 0
            self._idle.forget()
            self._states.clear()

    def step(self, nodes: frozenset[_Node], char: str) -> _State:
        """The state after ``char``; at every character a match may begin."""
        self._remember()
        reached = _closure(
            following for node in nodes | self._start if node.takes(char) for following in node.following
        )
        return self._states.setdefault(reached, _State(self, reached)) if reached else self._idle


class _State(dict[str, "_State"]):
    """Where the automaton may be after some text; the next state by character."""

    __slots__ = ("_scan", "hits", "nodes", "pieces")

    def __init__(self, scan: Prescan, nodes: frozenset[_Node]) -> None:
        super().__init__()
        self._scan = scan
        self.pieces: dict[str, _Walked] = {}
        self.nodes = nodes
        self.hits = frozenset(node.number for node in nodes if node.is_end)

    def __missing__(self, char: str) -> _State:
        state = self[char] = self._scan.step(self.nodes, char)
        return state

    def forget(self) -> None:
        self.clear()
        self.pieces.clear()


_Walked = tuple[_State | None, int]


class PatternSkim:
    """The automaton at work on one text; see ``Skim`` in ``diarist.processors.streaming_redaction``."""

    def __init__(self, scan: Prescan, idle: _State, most: int) -> None:
        self._scan, self._idle, self._most = scan, idle, most
        self._state: _State | None = idle
        self._held = 0

    def feed(self, piece: str) -> int | None:
        if self._state is None:
            return None
        self._state, kept = self._state.pieces.get(piece) or self._scan.walk(self._state, piece)
        self._held = held = kept if kept >= 0 else self._held + len(piece)
        if self._state is None or held > self._most:
            self._state = None
            return None
        return held

    def restart(self, text: str) -> None:
        self._state, self._held = self._idle, 0
        if len(text) > self._most:
            self._state = None
        elif text:
            self.feed(text)


@dataclass(eq=False, slots=True)
class _Node:
    """A place in the pattern of that number: before a character of some ``kind``, or at a fork, or at the end."""

    number: int
    kind: Any = None  # a compiled class of one character
    following: list[_Node] = field(default_factory=list["_Node"])

    @property
    def is_end(self) -> bool:
        return self.kind is None and not self.following

    def takes(self, char: str) -> bool:
        return self.kind is not None and self.kind.match(char) is not None


def _closure(nodes: Iterable[_Node]) -> frozenset[_Node]:
    """The nodes at a character, or at the end, that these lead to."""
    todo, seen = list(nodes), set[_Node]()
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            if node.kind is None:
                todo += node.following
    return frozenset(node for node in seen if node.kind is not None or node.is_end)


class _Unsupported(Exception):
    """Something in a pattern that is not known here."""


class _Reader:
    """Makes nodes of parsed patterns, from the end to the beginning."""

    def __init__(self) -> None:
        self._count = self._number = self._behind = 0

    def read(self, pattern: re.Pattern[str], number: int) -> _Node | None:
        """The node before the pattern; None for a pattern that cannot be followed."""
        self._number, self._count, self._behind = number, 0, 0
        flags = pattern.flags & ~re.DEBUG
        try:
            # Python has no public parser for its patterns; what this one says is checked item by item below, and where
            # it is of another shape than we know, the pattern is one that cannot be followed.
            parsed = import_module("re._parser").parse(pattern.pattern, flags)
            return self._sequence(parsed, flags, self._node())
        except (ImportError, AttributeError, LookupError, TypeError, ValueError, _Unsupported):
            return None

    def _node(self, *following: _Node, kind: Any = None) -> _Node:
        return _Node(self._number, kind, list(following))

    def _sequence(self, items: Any, flags: int, after: _Node) -> _Node:
        for operation, value in reversed(list(items)):
            after = self._item(str(operation), value, flags, after)
        return after

    def _item(self, operation: str, value: Any, flags: int, after: _Node) -> _Node:
        self._count += 1
        if self._count > _MOST_NODES:
            raise _Unsupported("too many repetitions")
        match operation:
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                return self._node(after, kind=_kind(operation, value, flags))
            case "BRANCH":
                return self._node(*(self._sequence(items, flags, after) for items in value[1]))
            case "SUBPATTERN":
                _, added, removed, items = value
                return self._sequence(items, (flags | added) & ~removed, after)
            case "ATOMIC_GROUP":
                return self._sequence(value, flags, after)
            case _ if operation in _REPEATS:
                least, most, items = value
                return self._repeat(least, most, items, flags, after)
            case "ASSERT" | "ASSERT_NOT":
                direction, items = value
                return self._look(direction, items, flags, after)
            case "AT" if str(value) == "AT_END" and not flags & re.MULTILINE:
                return self._look(1, [("LITERAL", ord("\n"))], flags, after)  # a newline, and whether it is the last
            case "AT" | "FAILURE":
                return after
            case _:
                raise _Unsupported(operation)

    def _look(self, direction: int, items: Any, flags: int, after: _Node) -> _Node:
        """A look ahead goes on beside the match, and never is one; a look behind is forgotten."""
        if direction < 0:
            self._behind += 1
            self._sequence(items, flags, after)
            self._behind -= 1
            return after
        if self._behind:
            raise _Unsupported("a look behind that looks ahead")
        return self._node(after, self._sequence(items, flags, self._node(kind=_never())))

    def _repeat(self, least: int, most: int, items: Any, flags: int, after: _Node) -> _Node:
        copies = min(least, _COPIES)
        if most > copies:
            fork = self._node(after)
            fork.following.append(self._sequence(items, flags, after if most == copies + 1 else fork))
            after = fork
        for _ in range(copies):
            after = self._sequence(items, flags, after)
        return after


def _never() -> Any:
    """No character at all."""
    import regex

    return regex.compile("(?!)")


def _kind(operation: str, value: Any, flags: int) -> Any:
    """A class of one character, as the engine itself understands it."""
    import regex

    if operation == "LITERAL" and value == ord("{"):
        raise _Unsupported("the engine may take what follows for its own syntax")
    items = {"LITERAL": [("LITERAL", value)], "NOT_LITERAL": [("NEGATE", None), ("LITERAL", value)]}
    listed: Any = [("CATEGORY", "ANY")] if operation == "ANY" else items.get(operation, value)
    source = "".join(_class_item(str(name), item) for name, item in listed)
    engine = (regex.IGNORECASE if flags & re.IGNORECASE else 0) | (regex.ASCII if flags & re.ASCII else 0)
    return regex.compile(f"[{source}]", engine | regex.V0)


def _class_item(name: str, value: Any) -> str:
    match name:
        case "NEGATE":
            return "^"
        case "LITERAL":
            return f"\\U{value:08x}"
        case "RANGE":
            return f"\\U{value[0]:08x}-\\U{value[1]:08x}"
        case "CATEGORY" if str(value) in _CATEGORIES:
            return _CATEGORIES[str(value)]
        case "CATEGORY" if value == "ANY":
            return r"\s\S"
        case _:
            raise _Unsupported(name)
