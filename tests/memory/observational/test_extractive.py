"""Observer and Reflector that need no model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarist import Memory
from diarist.chunks import Usage
from diarist.exceptions import RoleError
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.prompt.threads import obscure
from diarist.memory.observational.roles.extractive import observer, tools
from diarist.memory.observational.roles.extractive.dates import annotate_dates
from diarist.memory.observational.roles.extractive.observer import ExtractiveObserver
from diarist.memory.observational.roles.extractive.reflector import ExtractiveReflector, read_lines
from diarist.messages import FilePart, Message, Part, ToolPart
from diarist.storage import InMemoryStorage
from diarist.storage.records import Observation
from diarist.tokens import default_counter
from tests.properties import examples

MONDAY = datetime(2026, 3, 2, 9, 12, tzinfo=UTC)
LINE = re.compile(r"(?:  )?- (?:🔴|🟡|🟢|✅) (?:\d\d:\d\d )?\S")
count = default_counter().count


def entry(text: str) -> Observation:
    return Observation(
        id="obs",
        text=text,
        tokens=count(text),
        sources=(),
        message_tokens=0,
        message_count=0,
        observed_at=MONDAY,
        cycle_id="c",
    )


async def notes(*messages: Message, earlier: str = "", timezone: str = "UTC") -> str:
    observer = ExtractiveObserver(ObservationalMemoryConfig(timezone=timezone))
    observed = await observer.observe(messages, earlier=[entry(earlier)] if earlier else [])
    return observed.text


def user(text: str, minute: int = 12) -> Message:
    return Message.user(text, created_at=MONDAY.replace(minute=minute))


def assistant(text: str, minute: int = 13) -> Message:
    return Message.assistant(text, created_at=MONDAY.replace(minute=minute))


def called(name: str, args: dict[str, object], result: object, state: str = "result") -> Message:
    part = ToolPart(call_id="c", name=name, args=args, state=state, result=result)  # type: ignore[arg-type]
    return Message(role="assistant", parts=[part], created_at=MONDAY.replace(minute=14))


async def test_a_statement_is_kept_with_its_date_and_time() -> None:
    assert await notes(user("Hi there! I'm Ada and I fly to Rome next Friday.")) == (
        "Date: 2026-03-02\n- 🔴 09:12 User stated: I'm Ada and I fly to Rome next Friday (meaning 13 March 2026)."
    )


async def test_times_are_the_users() -> None:
    assert (await notes(user("I live in Tokyo."), timezone="Asia/Tokyo")).startswith("Date: 2026-03-02\n- 🔴 18:12 ")


async def test_without_time_stamps_nothing_is_dated() -> None:
    text = await notes(Message.user("I fly to Rome next Friday.", created_at=None))
    assert text == "Date: unknown\n- 🔴 User stated: I fly to Rome next Friday."


async def test_a_question_is_no_statement() -> None:
    assert "User asked: Which hotel in Rome has a garden?" in await notes(user("Which hotel in Rome has a garden?"))


async def test_a_tool_call_tells_what_came_out() -> None:
    result = '{"reference": "QX72LM", "status": "confirmed", "city": "Rome", "log": ["' + "x" * 3_000 + '"]}'
    text = await notes(called("book_hotel", {"city": "Rome", "nights": 3}, result))
    assert '- ✅ 09:14 Assistant called book_hotel(city="Rome", nights=3) → reference QX72LM, status confirmed' in text
    assert len(text) < 300


async def test_several_changes_in_a_row_are_noted() -> None:
    cities = ["Rome", "Oslo", "Turku", "Lund", "Paris", "Berlin", "Madrid", "Lisbon", "Vienna", "Prague"]
    bookings = [
        called("book_hotel", {"city": city, "nights": n}, f"Booked {city}, reference R{n * 7919}, breakfast included")
        for n, city in enumerate(cities, start=1)
    ]
    assert (await notes(user("Book all."), *bookings)).count("✅") >= 3


async def test_failed_calls_are_named_and_not_ticked() -> None:
    error = await notes(called("book_hotel", {"city": "Rome"}, "no rooms left", state="error"))
    assert 'book_hotel(city="Rome") → error: no rooms left' in error
    assert "✅" not in error
    assert "denied: not now" in await notes(called("book_hotel", {}, "not now", state="denied"))
    assert "→ Error: no such city" in await notes(called("book_hotel", {}, "Error: no such city"))


@pytest.mark.parametrize("name", ["refund", ""])  # a client that runs the tool may send only the call's id
async def test_calls_that_were_answered_later_are_noted_once_with_their_outcome(name: str) -> None:
    calls: list[Part] = [
        ToolPart(call_id=str(amount), name="refund", args={"order": f"A-{amount}", "amount": amount})
        for amount in (900, 50)
    ]
    outcomes: list[Part] = [
        ToolPart(call_id="900", name=name, args={}, state="result", result="refunded 900"),
        ToolPart(call_id="50", name=name, args={}, state="denied", result="too late"),
    ]
    answered = [Message(role="assistant", parts=calls), Message(role="tool", parts=outcomes)]
    text = await notes(user("Please refund order A-900 and order A-50 of last Tuesday."), *answered)
    assert [line.partition("called ")[2] for line in text.splitlines() if "called" in line] == [
        'refund(order="A-900", amount=900) → refunded 900',
        'refund(order="A-50", amount=50) → denied: too late',
    ]
    assert "✅" in text


@pytest.mark.parametrize(
    ("result", "ticked"),
    [
        ("Booked.", True),
        ("Error: card declined", False),
        ("ValueError: no such room", False),
        ([{"type": "text", "text": "Error: card declined"}], False),
        ({"reference": None, "price": 84, "error": "card declined"}, False),
        ('{"id": 7, "city": "Rome", "status": "failed"}', False),
        ({"id": 7, "success": False}, False),
        ({"id": 7, "error": None, "status": "ok"}, True),
        ('{"id": 7, "error": 0}', True),
        ('{"id": 7, "error": -0.00}', True),
        ('{"id": 7, "error": 2.0}', False),
        ("0 errors, 1 room booked", True),
    ],
)
async def test_only_changes_that_succeeded_are_ticked(result: object, ticked: bool) -> None:
    assert ("✅" in await notes(called("book_hotel", {"city": "Rome"}, result))) == ticked


@pytest.mark.parametrize("name", ["book_hotel", "TodoWrite", "bookHotel", "mcp__mail__send", "FILE.DELETE"])
async def test_changes_are_known_by_the_words_of_their_names(name: str) -> None:
    assert f"✅ 09:14 Assistant called {name}() → ok" in await notes(called(name, {}, "ok"))


@pytest.mark.parametrize("name", ["get_address", "list_updates", "booking_lookup", "WriterSearch", "postcode"])
async def test_tools_that_only_look_are_not_ticked(name: str) -> None:
    assert f"🟡 09:14 Assistant called {name}() → ok" in await notes(called(name, {}, "ok"))


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        ([{"type": "text", "text": "Sunny,"}, {"type": "text", "text": "24 degrees"}], "Sunny, 24 degrees"),
        ([{"type": "text", "text": '{"degrees": 24}'}], "degrees 24"),
        ([{"type": "text", "name": "title"}], "1 item: type text, name title"),
        ([7], "1 item: 7"),
        ([7, 8], "2 items: 7; 8"),
        ([], "0 items"),
        (None, "(empty)"),
        ("", "(empty)"),
        ({}, "(empty)"),
        (False, "false"),
    ],
)
async def test_results_of_each_shape_are_readable(result: object, outcome: str) -> None:
    assert (await notes(called("look", {}, result))).endswith(f"look() → {outcome}")


@pytest.mark.parametrize(
    "number",
    ["84.00", "98765432109876543210987", "0.30000000000000000001", "1e-7", "1E400", "-0", "7" * 4_301, "NaN"],
    ids=lambda number: number[:25],
)
async def test_numbers_are_noted_as_they_are_written(number: str) -> None:
    assert f" → price {number[:100]}" in await notes(called("look", {}, f'{{"price": {number}, "city": "Rome"}}'))


async def test_what_tells_most_of_a_result_is_kept() -> None:
    fields = {
        "note": "quiet and near the station",
        **{f"text {chr(97 + n)}": "x" * 60 for n in range(20)},
        "status": "sold out",
    }
    assert "status sold out" in await notes(called("look", {}, fields))
    nested = {"data": {"hotel": {"rooms": [{"price": 84}], "city": "Rome"}}, "text": "x" * 300}
    text = await notes(called("look", {}, nested))
    assert "price 84" in text
    assert "city Rome" in text
    log = "\n".join(
        ["=====", *(f"step {n} of the build is running" for n in range(50)), "3 passed, 1 failed", "Goodbye"]
    )
    assert "53 lines: 3 passed, 1 failed" in await notes(called("run", {}, log))
    assert "53 lines: step 0 of the build is running" in await notes(
        called("run", {}, log.replace("passed, 1 failed", ""))
    )
    assert "53 lines: ValueError: no room" in await notes(
        called("run", {}, log.replace("Goodbye", "ValueError: no room"))
    )


async def test_an_error_tells_more_than_a_summary_after_it() -> None:
    log = "\n".join([*["build"] * 80, "ValueError: bad room", *["cleanup"] * 3, "3 warnings"])
    assert "→ 85 lines: ValueError: bad room" in await notes(called("run", {}, log))


async def test_names_of_files_are_no_errors_and_rulers_no_content() -> None:
    files = "\n".join(["src/part.py"] * 40 + ["invalid.txt"])
    assert "→ 41 lines: src/part.py" in await notes(called("list", {}, files))
    assert "→ ===== =====" in await notes(called("list", {}, "=====\n" * 300))


ISSUE = {"title": "Login fails", "number": 4312, "state": "OPEN"}
KETTLE = {"title": "Red kettle", "price": 39.9}


async def test_a_change_is_noted_in_a_short_conversation() -> None:
    refunded = called("refund", {"order": "B-3", "euros": 250}, "refunded 250 EUR for B-3")
    text = await notes(user("Hello, I'm Bob."), assistant("Hello Bob."), user("Then refund B-3."), refunded)
    assert '✅ 09:14 Assistant called refund(order="B-3", euros=250) → refunded 250 EUR for B-3' in text


@pytest.mark.parametrize(
    "name",
    ["order_status", "getOrder", "get-order", "mcp__shop__get_order", "search_book", "lookup_order"],
)
async def test_looking_is_no_change(name: str) -> None:
    assert "✅" not in await notes(called(name, {"id": "B-3"}, "lost"))


@pytest.mark.parametrize(
    "name",
    [
        "update_order_status",
        "bookFlight",
        "close_ticket",
        "mcp__shop__create_order",
        "get_or_create_user",
        "reschedule",
    ],
)
async def test_a_change_is_marked(name: str) -> None:
    assert "✅" in await notes(called(name, {"id": "B-3"}, "done"))


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        ({"data": {"viewer": {"repository": {"issue": ISSUE}}}}, "number 4312, title Login fails, state OPEN"),
        ({"data": {"shop": {"products": {"edges": [{"node": KETTLE}]}}}}, "1 item: price 39.9, title Red kettle"),
        ({"errors": [{"message": "no such room"}]}, "errors 1 item: message no such room"),
    ],
)
async def test_what_wraps_a_result_takes_no_room(result: object, outcome: str) -> None:
    assert (await notes(called("query", {}, result))).endswith(f"query() → {outcome}")


async def test_the_same_call_is_noted_once() -> None:
    calls = [called("read_file", {"path": f"src/part{n}.py"}, "line\n" * 400) for n in (1, 2, 1)]
    text = await notes(user("Tidy up the parts.", 10), *calls)
    assert text.count("Assistant called read_file") == 2
    assert '🟡 09:14 Assistant called read_file(path="src/part1.py") → 400 lines: line' in text


async def test_tool_output_is_compressed_strongly_and_talk_less() -> None:
    rows = [{"id": n, "name": f"Hotel {n}", "price": 80 + n, "text": "quiet and near the station"} for n in range(60)]
    messages = [
        user("Find me a hotel in Rome for 3 nights, at most 120 euros."),
        called("search", {"city": "Rome"}, rows),
    ]
    heavy = await notes(*messages)
    assert count(messages[1].tool_parts[0].result_text) > 8 * count(heavy)
    assert "60 items" in heavy
    talk = [
        user(f"I met person{n} in town{n} on day {n}. It was nice weather there. We talked a while.") for n in range(40)
    ]
    ratio = sum(count(each.text) for each in talk) / count(await notes(*talk))
    assert 1.5 < ratio < 5


async def test_named_people_keep_their_names() -> None:
    messages = [
        Message.user("I adopted a dog called Pixel yesterday.", created_at=MONDAY, metadata={"name": "Mira"}),
        Message.assistant("I moved to Oslo last year.", created_at=MONDAY, metadata={"name": "Tom"}),
    ]
    observed = await ExtractiveObserver().observe(messages, earlier=[])
    assert "Mira stated: I adopted a dog called Pixel yesterday (meaning 1 March 2026)." in observed.text
    assert "Tom stated: I moved to Oslo last year (meaning 2025)." in observed.text
    assert observed.current_task is None


async def test_noted_rows_are_not_noted_again() -> None:
    first = await notes(user("I live in Turku."))
    again = await notes(user("I live in Turku."), user("My sister lives in Oslo."), earlier=first)
    assert "Turku" not in again
    assert "My sister lives in Oslo." in again
    little = await notes(user("I live in Turku."), user("It is so nice here."), earlier=first)
    assert little == "Date: 2026-03-02\n- 🟢 09:12 User said: It is so nice here."


async def test_something_is_always_noted() -> None:
    for text in ("ok", "👍", "Thanks!", "...", "```\nx = 1\n```"):
        assert "- 🟢 09:12 User said: " in await notes(user(text))
    known = await notes(user("I live in Turku. I like rye bread."))
    again = await notes(user("I live in Turku. I like rye bread."), earlier=known)
    assert again == "Date: 2026-03-02\n- 🔴 09:12 User stated: I live in Turku."


async def test_hints_follow_the_last_request() -> None:
    observer = ExtractiveObserver()
    open_end = await observer.observe([user("I'm Ada. Please find a ferry to Oslo.")], earlier=[])
    assert open_end.current_task == "The user's last request: Please find a ferry to Oslo."
    assert open_end.suggested_response == "Answer the user: Please find a ferry to Oslo."
    asked = await observer.observe([user("Find a ferry to Oslo."), assistant("At what time of day?")], earlier=[])
    assert asked.suggested_response == "Wait for the user's answer to: At what time of day?"
    answered = await observer.observe([user("Book the ferry."), assistant("Your code is F-88.")], earlier=[])
    assert (answered.current_task, answered.suggested_response) == ("The user's last request: Book the ferry.", "")
    greeted = await observer.observe([user("Hi!"), assistant("What is your name?")], earlier=[])
    assert (greeted.current_task, greeted.suggested_response) == (
        None,
        "Wait for the user's answer to: What is your name?",
    )
    thanks = await observer.observe([user("Thank you!")], earlier=[])
    assert (thanks.current_task, thanks.suggested_response) == (None, "")
    done = await observer.observe([assistant("It is booked.")], earlier=[])
    assert (done.current_task, done.suggested_response) == (None, "")


async def test_short_facts_about_the_user_are_noted() -> None:
    assert "I'm vegan." in await notes(user("I'm vegan.", 10), user("My sister Ines lives in Turku.", 11))
    assert "User said: I don't drink." in await notes(user("I don't drink."), assistant("I noted that for you."))


async def test_it_costs_nothing_and_says_what_it_is() -> None:
    observed = await ExtractiveObserver().observe([user("I live in Turku.")], earlier=[])
    assert (observed.usage, observed.model, observed.calls) == (Usage(), "extractive", 0)


async def test_machine_made_blocks_and_code_are_left_out() -> None:
    text = await notes(
        user("<system-reminder>The sky is green in 2031.</system-reminder>\nI use Python 3.11.\n```\nx = 1984\n```")
    )
    assert "I use Python 3.11." in text
    assert "green" not in text
    assert "1984" not in text


@pytest.mark.parametrize(
    "text",
    [
        "I met Prof. Holm and Mrs. Lund at St. Olaf in Turku.",
        "My boat is approx. 84 feet long, e.g. No. 7 on the map of A. Virtanen.",
    ],
)
async def test_abbreviations_do_not_end_a_sentence(text: str) -> None:
    assert f"User stated: {text}" in await notes(user(text + " Hm. Ah."))
    assert f"Answer the user: {text}" in str(await ExtractiveObserver().observe([user(text)], earlier=[]))


async def test_a_contraction_can_end_a_sentence() -> None:
    text = "No I don't. Can you find me a hotel in Rome?"
    observed = await ExtractiveObserver().observe([user(text)], earlier=[])
    assert observed.suggested_response == "Answer the user: Can you find me a hotel in Rome?"


async def test_of_pasted_code_the_error_is_kept() -> None:
    pasted = "It fails:\n```\nport = 1984\nError: Failed to bind to port 10000\n```\nI use Gunicorn 20.1.0."
    text = await notes(user(pasted))
    assert "Failed to bind to port 10000" in text
    assert "1984" not in text
    assert "Gunicorn 20.1.0" in text


async def test_facts_late_in_a_long_sentence_are_kept() -> None:
    asides = ", and it is what we usually do when there is time for it" * 6
    assert "Lund on May 4" in await notes(user(f"I have a plan{asides}, and I fly to Lund on May 4, so please help me"))


async def test_what_follows_an_unclosed_fence_is_kept() -> None:
    assert "My flight is AZ 204." in await notes(user("Look at this:\n```\nx = 1984\n\nMy flight is AZ 204."))
    assert "My flight is AZ 204." in await notes(user("<system-reminder>\nMy flight is AZ 204."))
    closed = await notes(user("```\nx = 1984\n```\n```\nMy flight is AZ 204."))
    assert "My flight is AZ 204." in closed
    assert "1984" not in closed


async def test_pasted_tables_and_logs_do_not_push_out_what_is_said() -> None:
    rows = "\n".join(
        f"{n},2026-03-{n % 28 + 1:02},{n * 37 % 911}.{n},{n * 7919 % 99991},A{n},{n * 31},0.{n}"
        for n in range(100, 160)
    )
    log = "\n".join(f"[2026-03-02T09:{n:02}:17.{n}Z] 10.0.0.{n} 200 0x{n:04x} {n * 7919}ms" for n in range(10, 60))
    said = ["My sister Ines lives in Turku.", "I keep nine bees and an alpaca."]
    text = await notes(user(f"{said[0]}\n{rows}\n{log}\n{said[1]}"))
    assert text == f"Date: 2026-03-02\n- 🔴 09:12 User stated: {' '.join(said)}"


TABLE = "\n".join(f"Customer{n},Street {n} Helsinki,{n * 13},paid,{n}-2026" for n in range(150))
LOG = "\n".join(
    f"2026-03-02 10:{n % 60:02} INFO com.example.Service{n} handled request id={n * 7919} user=u{n} in {n} ms"
    for n in range(800)
)


@pytest.mark.parametrize(("pasted", "said"), [(TABLE, "My tax rate is 24 %."), (LOG, "I use Debian 12.")])
async def test_of_pasted_rows_only_some_are_noted_before_what_is_said(pasted: str, said: str) -> None:
    assert said in await notes(user(f"Here it is:\n{pasted}\n{said}"))


async def test_beside_many_calls_all_requests_of_the_user_are_noted() -> None:
    asked = [
        "Is everything fine with this project, does the README say what the code does?",
        "We should support .tar and .tar.gz archives as well, like the .zip ones.",
        "In case of a broken archive we do nothing; can the manifest report that?",
        "Good, but commit the archives first, then go on with the report.",
        "OK, fine, let's take the second variant.",
    ]
    output = "\n".join(f"{n} def read_{n}(path): return Entry(path, {n * 7919})" for n in range(60))
    work: list[Message] = []
    for request in asked:
        calls = (called("read", {"file": f"src/part{n}.py"}, output) for n in range(8))
        work += [
            user(request),
            *calls,
            assistant(f"I have read {output[:200]} and changed src/part3.py. All 58 tests pass."),
        ]
    text = await notes(*work)
    assert [request for request in asked if request.rstrip(".") not in text] == []
    assert len(text) < 2 * len(output)  # of forty such results


async def test_of_a_long_message_the_request_is_noted_rather_than_what_is_pasted() -> None:
    asked = "Can you make the release script skip archives that are older than the manifest?"
    page = "\n".join(
        f"Release {n}.{n % 7} of Archiver adds option --{n * 7919:x} for manifest {n * 31}." for n in range(99)
    )
    last = "If there are none, print the help instead of an error."
    text = await notes(user(f"{asked}\n{page}\n{last}"))
    assert asked in text
    assert last in text


async def test_of_a_link_only_its_text_is_noted() -> None:
    link = "[the harbour map](https://maps.example.com/turku?zoom=14&layer=ferries)"
    assert "I use the harbour map of Turku." in await notes(user(f"I use {link} of Turku."))


async def test_notes_of_a_long_text_stay_short() -> None:
    words = ["heron", "walnut", "cobalt", "ferry", "lichen", "trumpet", "quarry", "saffron", "anvil", "glacier"]
    story = " ".join(
        f"The {words[n % 10]} of {n} met my {words[n // 10 % 10]} near Dock {n * 31 % 997}." for n in range(2_000)
    )
    assert 3_000 < len(await notes(user(story))) < 0.45 * (3_000 + len(story) / 5) + 1_000


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("I moved to Turku.", "🔴"),
        ("My boat is in Turku.", "🔴"),
        ("I'm allergic to peanuts.", "🔴"),
        ("I'm diabetic and I can't eat sugar.", "🔴"),
        ("I’m vegan.", "🔴"),
        ("I'm a nurse.", "🔴"),
        ("저는 서울에서 고양이를 키워요.", "🔴"),
        ("Eu moro em Lisboa.", "🔴"),
        ("The EU adopted the Nature Restoration Law.", "🟡"),
        ("Toyota built the MR2 in Japan, a car for the US and the MI area.", "🟡"),
        ("나무가 서울숲에 많아요.", "🟡"),
    ],
)
async def test_only_words_about_oneself_make_a_statement_important(text: str, mark: str) -> None:
    assert f"- {mark} 09:12 User stated: {text}" in await notes(user(text))


@pytest.mark.parametrize(
    "text",
    [
        "私は東京に住んでいます。来週、大阪に行きます。ホテルを予約してください。",
        "أنا أعيش في القاهرة. أريد السفر إلى لندن في 12 مايو؟",
        "🎉🎉🎉 party 2026 🎉",
        "Ich wohne in Köln. Wann fährt der Zug nach Wien?",
    ],
)
async def test_other_languages_keep_something_readable(text: str) -> None:
    first = re.split(r"[。.؟?]", text)[0].strip("🎉 ")
    assert first in await notes(user(text))


async def test_headings_are_no_notes() -> None:
    plan = "## Your trip to Rome\n\n**Where to stay**\n\nHotels:\n- The Artemide has 85 rooms and a quiet roof garden."
    text = await notes(user("Which hotel?"), assistant(plan))
    assert "The Artemide has 85 rooms" in text
    for heading in ("Your trip to Rome", "Where to stay", "Hotels"):
        assert heading not in text


async def test_the_users_words_come_before_the_assistants() -> None:
    guide = " ".join(f"Bake the {n} loaves at {180 + n} degrees until the crust is brown." for n in range(12))
    said = [f"My {oven} oven has {n} shelves." for n, oven in enumerate(["gas", "clay", "brick", "Dutch", "pizza"])]
    text = await notes(*[each for fact in said for each in (user(fact), assistant(guide))])
    assert [fact for fact in said if fact not in text] == []
    lines = text.splitlines()
    users, answers = (sum(len(line) for line in lines if who in line) for who in ("User", "Assistant"))
    assert answers < 1.5 * users < 0.2 * 5 * len(guide)


async def test_rare_words_are_kept_and_everyday_talk_is_not() -> None:
    talk = "It was so good to see you again and I really hope that we can do it more often from now on."
    facts = "The beekeeper in Ghent sold us heather honey."
    text = await notes(*[user(f"{talk} Week {n}.", n) for n in range(30)], user(facts, 40))
    assert facts in text
    assert text.count("so good to see you") < 15


async def test_what_was_noted_counts_little_again() -> None:
    first, same = "The ferry to Bornholm costs 84 euros.", "As I told you, the ferry to Bornholm costs 84 euros."
    other = "My aunt breeds alpacas."
    texts = [user(f"{same} {'Really.' * (n % 2)}", n) for n in range(10)]
    text = await notes(user(first, 0), *texts, user(other, 30))
    assert other in text
    assert text.count("Bornholm") < 8


@pytest.mark.parametrize(
    "fact",
    [
        "Meine Tante züchtet Alpakas in Ravensburg.",
        "Mi tía cría alpacas cerca de Zaragoza.",
        "叔母は札幌でアルパカを飼っています。",
        "Моя тётя разводит альпак под Самарой.",
    ],
)
async def test_facts_stand_out_in_other_languages(fact: str) -> None:
    small = {"M": "Das ist ja wirklich sehr schön, und ich freue mich.", "叔": "そうですね。ありがとうございます。"}
    talk = small.get(fact[0], "That is so nice of you, and I am very happy about it.")
    text = await notes(*[user(talk, n) for n in range(3)], user(fact, 20))
    assert fact in text


async def test_attachments_are_noted() -> None:
    message = Message(role="user", parts=[FilePart(media_type="image/png", data=b"x", name="map.png")])
    assert "User attached 'map.png' (image/png)" in await notes(message)


@pytest.mark.parametrize(
    ("sentence", "meaning"),
    [
        ("I leave tomorrow", "3 March 2026"),
        ("We met yesterday", "1 March 2026"),
        ("It is due in two weeks", "16 March 2026"),
        ("I moved here three years ago", "2023"),
        ("I'll start in 2 months", "May 2026"),
        ("The exam is on March 12", "12 March 2026"),
        ("The exam is on the 12th of March", "12 March 2026"),
        ("The deadline is MARCH 12", "12 March 2026"),
        ("Party on JUly 4th!", "4 July 2026"),
        ("The exam is on MArch 12", "12 March 2026"),
        ("See you next Friday", "13 March 2026"),
        ("I saw him last Friday", "27 February 2026"),
        ("I fly this Friday", "6 March 2026"),
        ("I fly to Rome on Friday", "6 March 2026"),
        ("I went to Rome on Friday", "27 February 2026"),
        ("It must be signed by Friday", "6 March 2026"),
        ("We hiked last weekend", "the weekend of 28 February 2026"),
        ("I started last month", "February 2026"),
        ("The fair is next year", "2027"),
        ("I heard it last week", "the week of 23 February 2026"),
        ("I saw her last Fri", "27 February 2026"),
        ("We hiked two weekends ago", "the weekend of 21 February 2026"),
        ("I moved last summer", "summer 2025"),
        ("We skied last winter", "winter 2025/2026"),
        ("I'll move this summer", "summer 2026"),
        ("I lost my job this month", "March 2026"),
        ("I quit smoking this year", "2026"),
        ("I've lived here for 3 years", "since 2023"),
        ("She has been a nurse for six months", "since September 2025"),
        ("I have lived here for the last 3 years", "since 2023"),
        ("I will be back in two weeks and one of us stays", "16 March 2026"),
        ("I will go to Japan for work in 2 months", "May 2026"),
        ("I have a cold and will see a doctor in two days", "4 March 2026"),
        ("I've been ill for a year and fly to Oslo next Friday", "13 March 2026"),
    ],
)
def test_days_are_computed_where_they_can_be(sentence: str, meaning: str) -> None:
    assert annotate_dates(sentence, date(2026, 3, 2)).count(f" (meaning {meaning})") == 1


@pytest.mark.parametrize(
    ("sentence", "meanings"),
    [
        ("I will see Ana tomorrow and fly to Rome in two weeks", ["3 March 2026", "16 March 2026"]),
        ("I have lived here for two years, and I will move in 3 months", ["since 2024", "June 2026"]),
        ("Yesterday we met Tom, who moved here two years ago", ["1 March 2026", "2024"]),
        (
            "I will have two exams next week and will be in Rome on March 12",
            ["the week of 9 March 2026", "12 March 2026"],
        ),
    ],
)
def test_each_phrase_of_a_sentence_gets_its_date(sentence: str, meanings: list[str]) -> None:
    assert re.findall(r" \(meaning ([^)]+)\)", annotate_dates(sentence, date(2026, 3, 2))) == meanings


@pytest.mark.parametrize(
    "sentence",
    [
        "I swim every Friday",
        "The office is closed on Fridays",
        "The keynote is on Thursday",
        "My birthday is on March 12",
        "It feels like yesterday",
        "The exam is on 12 March 2027",
        "They are open Monday to Friday",
        "I may 5 times repeat it",
        "She finished it in two days",
        "The deadline is 31 April",
        "A few weeks ago",
        "I'll stay there for 3 years",
        "I lived there for three years",
        "The fair is next summer",
        "We meet this week",
        "We meet march The 12th",
        "We slept laſt night and meet next ſunday",
        "I have lost 5 kg in the last 2 months",
        "I called three times in the past two years",
        "Show my orders in the past two weeks",
        "In over 3 years I have not been ill",
        "I will be back in 2 weeks and 3 days",
        "I will be back in two years and six months",
        "I went there on MONDAY",
    ],
)
def test_no_day_is_invented(sentence: str) -> None:
    assert annotate_dates(sentence, date(2026, 3, 2)) == sentence


@pytest.mark.parametrize(
    ("sentence", "meaning"),
    [
        # plans, also those that were made in the past
        ("I booked a table for Friday", "3 April 2026"),
        ("I booked a table at Nobu for this Friday", "3 April 2026"),
        ("The launch is scheduled for this Friday", "3 April 2026"),
        ("The launch is scheduled for Friday", "3 April 2026"),
        ("The demo is planned for Thursday", "2 April 2026"),
        ("The demo was planned for Thursday", "2 April 2026"),
        ("I was invited for Sunday", "5 April 2026"),
        ("I got an appointment for Thursday", "2 April 2026"),
        ("She bought tickets for Saturday", "4 April 2026"),
        ("Tickets are reserved for Sunday", "5 April 2026"),
        ("My hotel is booked for this weekend", "the weekend of 4 April 2026"),
        ("I'm so excited for Friday", "3 April 2026"),
        ("I need it finished by Friday", "3 April 2026"),
        ("She wants it delivered by Friday", "3 April 2026"),
        ("I promised to send the report by Friday", "3 April 2026"),
        ("They agreed to pay by this Friday", "3 April 2026"),
        ("The invoice must be paid by Friday", "3 April 2026"),
        ("The car isn't fixed by Friday", "3 April 2026"),
        ("The meeting was postponed until Monday", "6 April 2026"),
        ("They extended the sale until this Sunday", "5 April 2026"),
        ("The shop is closed until Monday", "6 April 2026"),
        ("The office is already closed this Friday", "3 April 2026"),
        ("I get paid this Friday", "3 April 2026"),
        ("The party is held this Saturday", "4 April 2026"),
        # the past
        ("I visited the museum on Friday", "27 March 2026"),
        ("We watched it this weekend", "the weekend of 28 March 2026"),
        ("I walked ten miles this Friday", "27 March 2026"),
        ("The package arrived on Monday", "30 March 2026"),
        ("I was promoted on Friday", "27 March 2026"),
        ("It was cancelled on Monday", "30 March 2026"),
        ("The match has been cancelled on Monday", "30 March 2026"),
        ("I got married on Saturday", "28 March 2026"),
        ("She called me on Sunday", "29 March 2026"),
        ("I signed the contract on Friday", "27 March 2026"),
        ("I had an appointment on Friday", "27 March 2026"),
        ("I thought of you this weekend", "the weekend of 28 March 2026"),
        ("The exam on Friday was hard", "27 March 2026"),
        ("They accepted the claim for Ann's ticket on Friday", "27 March 2026"),
        ("I hosted a class for them on Friday", "27 March 2026"),
        ("On Friday I decided to quit", "27 March 2026"),
        ("On Saturday they invited us to dinner", "28 March 2026"),
        ("I worked there since Friday", "27 March 2026"),
        ("I decided this year that I want a dog", "2026"),
        ("They told me last Friday", "27 March 2026"),
        # either
        ("They invited us to dinner on Saturday", None),
        ("I promised Ann to call on Friday", None),
        ("I was told the parcel arrives on Thursday", None),
        ("She said she was free on Friday", None),
        ("I said I'd call Ann on Friday", None),
        ("I signed up for the race on Sunday", None),
        ("I registered for the marathon this Sunday", None),
        ("We agreed to meet on Saturday", None),
        ("I decided to leave on Friday", None),
        ("I booked the flight on Friday", None),
        ("I booked the flight this weekend", None),
        ("We planned a hike on Saturday", None),
        ("I got tickets to the match on Saturday", None),
        ("I found out the exam is on Thursday", None),
        ("It was postponed on Friday", None),
        ("The concert is sold out on Friday", None),
        ("The deadline was extended to Friday", None),
        ("The party was moved to this Saturday", None),
        ("I was supposed to work on Sunday", None),
        ("I worked at Nobu until Monday", None),
        ("Until Monday I worked at Nobu", None),
        ("We stayed there till Sunday", None),
        ("By Friday I was exhausted", None),
        ("We went to my mother for Sunday dinner", None),
        ("Thanks for Friday", None),
        ("Thank you for Friday", None),
    ],
)
def test_plans_are_ahead_and_the_past_is_behind(sentence: str, meaning: str | None) -> None:
    dates = re.findall(r" \(meaning ([^)]+)\)", annotate_dates(sentence, date(2026, 3, 31)))
    assert dates == ([meaning] if meaning else [])


@pytest.mark.parametrize(
    ("sentence", "meaning"),
    [
        # only mentioned
        ("Thanks again for Friday", None),
        ("Thank you so much for Friday", None),
        ("Apologies for Monday", None),
        ("Sales for Monday are up", None),
        ("The numbers for Tuesday look bad", None),
        ("I live for Friday nights", None),
        ("I am sorry again for Monday", None),
        ("Here is the receipt for Saturday", None),
        ("What is the total for Monday?", None),
        ("My score for Sunday: 78", None),
        ("No entry for Monday yet", None),
        ("This bill is for Saturday", None),
        # plans told as over
        ("The hotel we booked for Saturday was terrible", None),
        ("The flight was booked for Tuesday but got cancelled", None),
        ("The launch scheduled for Tuesday went well", None),
        ("I said I would finish it by Monday and I did", None),
        ("The party we planned for Saturday was a success", None),
        ("The tickets for Sunday were expensive", None),
        ("The doctor's appointment for Monday went well", None),
        ("He promised to pay by Monday but didn't", None),
        ("I have to say the hotel we booked for Saturday was terrible", None),
        ("I have to say this weekend was great", None),
        ("I was so excited for Friday", None),
        # the past, after "is" or "are"
        ("Here are the photos we took on Saturday", "7 March 2026"),
        ("Where is the file you sent on Monday?", "9 March 2026"),
        ("This is the cake I made on Sunday", "8 March 2026"),
        ("There are two people I met on Monday", "9 March 2026"),
        ("Is the dress you bought on Saturday blue?", "7 March 2026"),
        ("My boss is angry that I missed Monday", "9 March 2026"),
        ("The results are what I expected on Friday", "6 March 2026"),
        ("I learned the exam is at noon on Friday", None),
        # "he's" may be "he is" or "he has"
        ("He's visited us on 1 July", None),
        ("She's made it on 1 July", None),
        ("The museum's closed on 1 May", None),
        ("He's visited us this Friday", None),
        ("She's finished it this weekend", None),
        ("He's moved on Monday", None),
        ("She's arrived on 2 March", "2 March 2026"),
        ("It's planned for 1 July", "1 July 2026"),
        ("It's currently booked for 23 May", "23 May 2026"),
        ("The shop's currently closed on Monday", None),
        ("It's scheduled for Friday", "13 March 2026"),
        ("The shop's closed until Monday", "16 March 2026"),
        # ahead
        ("Please book a table for Friday", "13 March 2026"),
        ("What are your plans for Saturday?", "14 March 2026"),
        ("I can't wait for Friday", "13 March 2026"),
        ("So excited for Friday!", "13 March 2026"),
        ("This weekend I'm heading to the lake - excited!", "the weekend of 14 March 2026"),
        ("The meeting is set for Monday", "16 March 2026"),
        ("I need it by Friday because the boss asked for it", "13 March 2026"),
    ],
)
def test_days_told_as_over_or_only_mentioned_are_not_ahead(sentence: str, meaning: str | None) -> None:
    dates = re.findall(r" \(meaning ([^)]+)\)", annotate_dates(sentence, date(2026, 3, 11)))
    assert dates == ([meaning] if meaning else [])


@given(
    st.sampled_from(
        ["I booked it", "It was moved", "We worked", "They said it stays", "It is planned", "I'll be there"]
    ),
    st.sampled_from(["for", "by", "until", "till"]),
    st.sampled_from(["Monday", "Friday", "this Wednesday", "this Sunday"]),
    st.dates(date(1900, 1, 1), date(2100, 1, 1)),
)
def test_plans_for_a_weekday_are_never_in_the_past(talk: str, word: str, day: str, said: date) -> None:
    for written in re.findall(r"meaning (\d+ \w+ \d+)", annotate_dates(f"{talk} {word} {day}", said)):
        assert timedelta(0) <= datetime.strptime(written, "%d %B %Y").date() - said < timedelta(7)


@pytest.mark.parametrize("text", ["What a day!", "One day at a time.", "It was one year.", "Not even once a week!"])
async def test_a_day_that_is_not_named_is_no_date(text: str) -> None:
    assert await notes(user(text)) == f"Date: 2026-03-02\n- 🟢 09:12 User said: {text}"


phrases = st.sampled_from(
    [
        "tomorrow",
        "next Friday",
        "last Monday",
        "on 29 February",
        "March 31",
        "in 999 years",
        "12 months ago",
        "by Sunday",
    ]
)


@given(phrases, st.dates(date(1000, 1, 1)))
def test_any_day_can_be_asked_for(phrase: str, said: date) -> None:
    text = annotate_dates(f"We will see {phrase}", said)
    assert text.startswith("We will see")
    assert annotate_dates(text, said) == text


@given(st.dates(date(1900, 1, 1), date(2100, 1, 1)))
def test_next_and_last_weekdays_are_near_and_on_that_day(said: date) -> None:
    for phrase, low, high in (("next Friday", 1, 13), ("last Friday", -7, -1)):
        written = re.search(r"meaning (\d+ \w+ \d+)", annotate_dates(f"See {phrase}", said))
        assert written is not None
        day = datetime.strptime(written[1], "%d %B %Y").date()
        assert day.weekday() == 4
        assert timedelta(low) <= day - said <= timedelta(high)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc_id", max_size=6), inner, max_size=4),
    max_leaves=12,
)
any_message = st.one_of(
    texts.map(user),
    texts.map(assistant),
    st.builds(called, st.text(max_size=10), st.dictionaries(texts, json_values, max_size=3), json_values | texts),
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(any_message, max_size=6))
async def test_any_conversation_gives_well_formed_lines(messages: list[Message]) -> None:
    text = await notes(*messages)
    for line in text.split("\n") if text else []:
        assert line == "Date: 2026-03-02" or LINE.match(line), line
    assert text == await notes(*messages)


MARKUP = [
    "\n",
    "1. ",
    "2) ",
    "- ",
    "> ",
    "# ",
    "**",
    "```",
    "```python\n",
    "<a-b>",
    "</a-b>",
    "[x](",
    ")",
    "|",
    "Error: x",
    "I fly to Rome. ",
    "12",
    " ->-> 1,2",
    ".",
    "…",
    "。",
]


@settings(max_examples=examples(500))
@given(st.lists(st.sampled_from(MARKUP), max_size=14).map("".join))
async def test_any_markup_gives_well_formed_lines(text: str) -> None:
    for message in (user(text), Message.assistant(text, created_at=MONDAY)):
        found = await notes(message)
        for line in found.split("\n") if found else []:
            assert line == "Date: 2026-03-02" or LINE.match(line), line


HARD = ["x", " ", "😀", "\n", "word ", "A. ", "I like tea. ", "dr. ", ". ", '"', "[", "- 1. ", "<a-b>", "1, ", "今天"]


@pytest.mark.slow
@pytest.mark.parametrize("unit", HARD)
async def test_of_a_long_text_only_so_much_is_looked_at(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same work for one megabyte as for half of it, since the event loop waits for it."""
    work: list[int] = []
    for name in ("_weigh", "annotate_dates", "fingerprint", "shorten_at_space"):
        monkeypatch.setattr(observer, name, _counted(getattr(observer, name), work))
    looked_at: list[int] = []
    for size in (500_000, 1_000_000):
        work.clear()
        text = unit * (size // len(unit))
        await notes(user(text), assistant(text), called("read", {"x": text}, text))
        looked_at.append(sum(work))
    assert looked_at[1] <= looked_at[0] + 1_000
    assert looked_at[1] < 2_000_000


WIDE: dict[str, Callable[[int], object]] = {
    "fields": lambda n: {f"key {i}": i for i in range(n)},
    "folders": lambda n: {f"key {i}": {"name": i} for i in range(n)},
    "lists": lambda n: {f"key {i}": [i, i] for i in range(n)},
    "rows": lambda n: [{"id": i, "tags": [i, i]} for i in range(n)],
    "lists of lists": lambda n: [[[i] * 100 for i in range(100)] for _ in range(n // 1_000)],
    "rows in rows": lambda n: _rows(n, 3),
}


def _rows(n: int, depth: int) -> dict[str, Any]:
    width = round(n ** (1 / depth)) // 3
    return {f"k{i}": [_rows(n, depth - 1)] * 3 if depth > 1 else i for i in range(width if depth > 1 else 30)}


@pytest.mark.slow
@pytest.mark.parametrize("shape", WIDE)
async def test_of_a_wide_result_only_so_much_is_looked_at(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work: list[int] = []
    for name in ("as_text", "shorten_at_space"):
        monkeypatch.setattr(tools, name, _counted(getattr(tools, name), work))
    looked_at: list[int] = []
    for size in (20_000, 40_000):
        work.clear()
        await notes(called("read", {}, WIDE[shape](size)))
        looked_at.append(len(work))
    assert looked_at[1] <= 1.5 * looked_at[0]
    assert looked_at[1] < 20_000


async def test_a_deep_result_is_noted() -> None:
    assert "Assistant called read() → 1 item" in await notes(called("read", {}, "[" * 500 + "]" * 500))
    assert "Assistant called read() → [[[" in await notes(called("read", {}, "[" * 100_000 + "]" * 100_000))


async def test_a_result_with_half_a_character_is_noted() -> None:
    assert "→ na\ufffdme R\ufffdme" in await notes(called("look", {}, '{"na\\ud800me": "R\\ud800me"}'))


def _counted(function: Any, work: list[int]) -> Any:
    def count(text: Any, *more: Any, **named: Any) -> Any:
        work.append(len(text) if isinstance(text, str) else 1)
        return function(text, *more, **named)

    return count


async def test_others_have_their_turn_between_two_messages() -> None:
    turns, reading = 0, asyncio.create_task(notes(*[user(f"I like tea number {n}.") for n in range(50)]))
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 50


async def test_the_end_of_a_long_text_is_read() -> None:
    found = await notes(user("x = foo(1, 2);\n" * 20_000 + "My flight AZ 204 to Rome leaves on 12 June."))
    assert "AZ 204" in found


async def test_a_long_result_still_says_how_many_lines_it_has() -> None:
    found = re.search(r"(\d+) lines", await notes(called("read", {}, "abc = 1\n" * 30_000)))
    assert found is not None
    assert abs(int(found[1]) - 30_000) < 5


DIARY = """Date: 2026-03-02
- 🔴 09:00 User stated: I live in Turku.
- 🟢 09:05 User said: Nice weather.
- 🟡 09:10 Assistant made 3 tool calls: search ×3
  - 🟡 09:10 search("a") → nothing
  - ✅ 09:11 book("b") → reference B-1
Date: 2026-03-03
- 🟡 10:00 User asked: Where is the ferry?
- 🟢 10:05 User said: Hm.
- ✅ 10:10 Assistant reported done: The ferry is booked."""


async def reflected(text: str, target: int) -> str:
    return (await ExtractiveReflector().reflect([entry(text)], target_tokens=target)).text


async def test_lines_go_by_mark_and_age_until_it_fits() -> None:
    assert await reflected(DIARY, count(DIARY) + 1) == DIARY
    one_less = await reflected(DIARY, count(DIARY))
    assert "Nice weather" not in one_less
    assert "Hm." in one_less
    important = "\n".join(line for line in DIARY.splitlines() if "🟢" not in line and "🟡" not in line)
    important = important.replace("  - ✅", "- ✅")
    assert await reflected(DIARY, count(important) + 2) == important
    one_less = await reflected(DIARY, count(important))
    assert "reference B-1" not in one_less
    assert "The ferry is booked" in one_less
    assert await reflected(DIARY, 1) == "Date: 2026-03-02\n- 🔴 09:00 User stated: I live in Turku."


async def test_a_diary_of_important_lines_only_stays_below_the_target() -> None:
    lines = [f"- 🔴 09:00 User stated: order {n} has {n * 7} boxes for {'Turku, ' * 40}" for n in range(200)]
    short = await reflected("\n".join(["Date: 2026-03-02", *lines]), 2_000)
    assert 1_500 < count(short) < 2_000
    assert "order 199 has" in short
    assert "order 9 has" not in short


@pytest.mark.parametrize("mark", ["🔴", "🟢"])
async def test_a_diary_with_one_line_a_day_keeps_as_many_as_fit(mark: str) -> None:
    days = [MONDAY + timedelta(days=n) for n in range(300)]
    lines = [f"Date: {day:%Y-%m-%d}\n- {mark} 09:00 order {day.toordinal()} is here" for day in days]
    assert 1_450 < count(await reflected("\n".join(lines), 1_500)) < 1_500


async def test_days_are_merged_and_the_newest_of_doubles_stays() -> None:
    first = "Date: 2026-03-02\n- 🔴 09:00 User stated: I live in Turku.\n- 🟡 09:01 a"
    second = "Date: 2026-03-03\n- 🟡 10:00 b\nDate: 2026-03-02\n- 🔴 11:00 User stated: I live in Turku!"
    result = await ExtractiveReflector().reflect([entry(first), entry(second)], target_tokens=1_000)
    assert result.text == (
        "Date: 2026-03-02\n- 🟡 09:01 a\n- 🔴 11:00 User stated: I live in Turku!\nDate: 2026-03-03\n- 🟡 10:00 b"
    )


@pytest.mark.parametrize("said", ["I like tea.", "Where is Rome?"])
async def test_a_diary_of_a_single_line_keeps_it(said: str) -> None:
    config = ObservationalMemoryConfig(model="extractive")
    async with Memory(storage=InMemoryStorage(), observational_memory=config) as memory:
        await memory.messages.save(said, thread="t")
        await memory.diary.observe(thread="t")
        assert said in (await memory.diary.reflect(thread="t", guidance="Keep all.")).text


async def test_what_cannot_be_done_is_said() -> None:
    result = await ExtractiveReflector().reflect([entry(DIARY)], target_tokens=1, guidance="Keep the weather.")
    assert any("guidance" in warning for warning in result.warnings)
    assert (result.usage, result.model) == (Usage(), "extractive")
    with pytest.raises(RoleError):
        await ExtractiveReflector().reflect([entry("")], target_tokens=10)


async def test_a_detail_does_not_outlive_the_line_it_belongs_to() -> None:
    text = """Date: 2026-03-02
- 🔴 09:00 User stated: I live in Turku.
- 🟢 09:01 User asked: Which hotel in Rome?
  - 🟡 09:02 It costs 80 euros.
  - It has a garden.
- 🟡 09:03 User asked: Where is the ferry?"""
    rest = text[: text.index("\n- 🟢")] + text[text.index("\n- 🟡") :]
    assert await reflected(text, count(rest) + 1) == rest


async def test_a_detail_that_stays_belongs_to_no_other_line() -> None:
    text = """Date: 2026-03-02
- 🔴 09:00 User stated: I live in Turku.
- 🟢 09:01 User asked: Which hotel in Oslo?
  - 🔴 09:02 It costs 80 euros."""
    rest = "Date: 2026-03-02\n- 🔴 09:00 User stated: I live in Turku.\n- 🔴 09:02 It costs 80 euros."
    assert await reflected(text, count(rest) + 2) == rest
    again = f"{text}\nDate: 2026-03-03\n- 🟢 10:00 User asked: Which hotel in Oslo?"
    assert await reflected(again, 1_000) == (
        "Date: 2026-03-02\n- 🔴 09:00 User stated: I live in Turku.\n- 🔴 09:02 It costs 80 euros.\n"
        "Date: 2026-03-03\n- 🟢 10:00 User asked: Which hotel in Oslo?"
    )


async def test_a_detail_does_not_suffer_from_its_neighbour() -> None:
    text = """Date: 2026-03-02
- 🟡 09:00 User asked: Which hotel in Oslo?
  - 🟢 09:01 The weather is nice.
  - 🟡 09:02 It costs 80 euros.
- 🟢 09:03 User said: Hm."""
    rest = "\n".join(line for line in text.splitlines() if "🟢" not in line)
    assert await reflected(text, count(rest) + 1) == rest


async def test_days_stay_in_order() -> None:
    text = "Date: 2026-03-02\n- 🔴 a\n- 🔴 b\nDate: 2026-03-03\n- 🔴 c\nDate: 2026-03-02\n- 🔴 a\n- 🔴 b"
    assert await reflected(text, 1_000) == "Date: 2026-03-02\n- 🔴 a\n- 🔴 b\nDate: 2026-03-03\n- 🔴 c"


diaries = st.lists(
    st.tuples(
        st.sampled_from(["🔴", "✅", "🟡", "🟢"]),
        st.booleans(),
        st.integers(1, 5),
        st.text("abc xyz", min_size=1, max_size=40),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=examples(60), deadline=None)
@given(diaries, st.integers(1, 400))
async def test_a_reflection_fits_or_is_a_single_line(lines: list[tuple[str, bool, int, str]], target: int) -> None:
    text = "\n".join(
        f"Date: 2026-03-0{day}\n{'  ' if detail else ''}- {mark} 09:00 {words.strip() or 'x'}"
        for mark, detail, day, words in lines
    )
    result = await reflected(text, target)
    kept = list(read_lines(result))
    assert count(result) < target or len(kept) == 1
    before = {line.text for line in read_lines(text)}
    assert all(line.text in before or line.text.endswith("…") for line in kept)


async def test_each_line_names_the_messages_it_was_made_from() -> None:
    messages = [
        Message.user("I live in Turku and my flight is AZ 204.", id="m1", created_at=MONDAY),
        Message.assistant("Noted.", id="m2", created_at=MONDAY),
        Message.user("I decided to sail on 12 June 2026.", id="m3", created_at=MONDAY + timedelta(days=1)),
    ]
    observed = await ExtractiveObserver().observe(messages, earlier=[])
    cited = dict(zip(observed.text.splitlines(), observed.citations, strict=True))
    assert next(ids for line, ids in cited.items() if "AZ 204" in line) == ("m1",)
    assert next(ids for line, ids in cited.items() if "12 June" in line) == ("m3",)
    assert all(ids == () for line, ids in cited.items() if line.startswith("Date:"))


async def test_notes_of_several_threads_name_them_in_their_headings() -> None:
    messages = [
        Message.user("My flight is AZ 204.", thread_id="trip", created_at=MONDAY),
        Message.user("My printer is an LX 300.", thread_id="office", created_at=MONDAY),
    ]
    observed = await ExtractiveObserver().observe(messages, earlier=[])
    headings = [line for line in observed.text.splitlines() if line.startswith("Date:")]
    assert [heading.partition(" (")[2] for heading in headings] == ["thread trip)", "thread office)"]
    assert observed.current_task is None
    hidden = await ExtractiveObserver(ObservationalMemoryConfig(obscure_thread_ids=True)).observe(messages, earlier=[])
    assert f"(thread {obscure('trip')})" in hidden.text
