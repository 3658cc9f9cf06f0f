"""What counting tokens costs: the first count of a process, and counts of ordinary texts.

    python benchmarks/tokens.py [--rounds 7] [--against CHECKOUT]

Each number comes from a fresh process and is a median. ``--against`` measures another checkout of diarist in the same
rounds and prints the ratio to it.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from statistics import median

from _checkouts import checkouts

CODE = """
import hashlib, json, random, sys, time
import diarist.exceptions
from diarist.tokens import default_counter

def pages():
    try:
        return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
    except OSError:
        return 0.0

spent = {}
before, began = pages(), time.process_time()
default_counter().count("hello, world")
spent["first count, ms CPU"] = (time.process_time() - began) * 1e3
spent["first count, MB RSS"] = pages() - before

chance = random.Random(1)
english = ("the train to Rome leaves at nine from platform four and costs less than a flight, so please keep a seat by "
    "the window for my mother who can't walk far; tell the hotel that we'll arrive late on Thursday at 18:30").split()
chinese = "我今天下午三点要去罗马请帮我查一下天气和酒店的情况顺便问一下火车站附近有没有好吃的餐厅价格不要太贵"
names = ["".join(chance.choices("abcdefghij", k=9)) for _ in range(75)]
rows = [{"id": chance.randrange(10**8), "name": name, "ok": True} for name in names]
texts = {
    "500 tokens of English": [" ".join(chance.choices(english, k=450)) for _ in range(200)],
    "2,000 tokens of JSON": [json.dumps(rows[each % 50:] + rows) for each in range(50)],
    "500 tokens of Chinese": ["，".join("".join(chance.choices(chinese, k=9)) for _ in range(50)) for _ in range(200)],
}
for name, some in texts.items():
    began = time.process_time()
    for each in some:
        default_counter().count(each)
    spent[name + ", ms"] = (time.process_time() - began) * 1e3 / len(some)
spent["afterwards, MB RSS"] = pages() - before
print(json.dumps(spent))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--against", metavar="CHECKOUT")
    given = parser.parse_args()
    taken: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with checkouts(given.against) as versions:
        for _ in range(given.rounds):
            for version, checkout in versions.items():
                for name, value in json.loads(checkout.run(CODE).said).items():
                    taken[name][version].append(value)
    print(f"{'':32}{'here':>8}" + (f"{'there':>8}{'ratio':>8}" if given.against else ""))
    for name, values in taken.items():
        here, *there = (median(each) for each in values.values())
        print(f"{name:32}{here:>8.2f}" + "".join(f"{each:>8.2f}{here / each:>8.2f}" for each in there if each))


if __name__ == "__main__":
    main()
