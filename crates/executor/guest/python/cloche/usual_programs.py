"""Runs in: a template. Programs as models write them.

Copies of the template run them before there is a job, so that the pages which such programs write
to are known. They use what many programs use, leave no file behind, and end quietly. What they
print goes nowhere.
"""

_REPORT = b"""\
import functools
import itertools
import json
import math
import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import Enum

TEXT = "ada,90.5\\nbob,72\\ncyd,88.25\\n"


class Level(Enum):
    LOW = 1
    HIGH = 2


@dataclass
class Item:
    name: str
    price: float = 1.5
    tags: list = field(default_factory=list)

    def total(self, count=1):
        return self.price * count


class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self._balance = balance

    @property
    def balance(self):
        return self._balance

    def withdraw(self, amount):
        if amount > self._balance:
            raise ValueError(f"only {self._balance} left")
        self._balance -= amount

    def __repr__(self):
        return f"{type(self).__name__}({self.owner!r}, {self._balance:.2f})"


class Savings(Account):
    def __init__(self, owner, balance=0, rate=0.02):
        super().__init__(owner, balance)
        self.rate = rate


def primes(limit):
    for n in range(2, limit):
        if all(n % p for p in range(2, int(math.sqrt(n)) + 1)):
            yield n


@functools.lru_cache(maxsize=None)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


accounts = [Savings(*line.split(",")[:1], float(line.split(",")[1])) for line in TEXT.split()]
groups = defaultdict(list)
for account in sorted(accounts, key=lambda account: (-account.balance, account.owner)):
    groups[account.balance > 80].append(account.owner)
    print(f"{account.owner:<10}|{account.balance:>8.2f}|{len(groups):,d}", account)
try:
    accounts[0].withdraw(1000)
except (ValueError, KeyError) as error:
    print("error:", error)
finally:
    print("done")
text = json.dumps({"groups": list(groups.items()), "none": None, "ok": [True, 1.5, "\\u00e9"]},
                  indent=2)
print(json.loads(text)["ok"], len(text), json.dumps([1, {"a": "b"}]))
print(Counter(re.findall(r"[a-z]+", text.lower())).most_common(2), re.sub(r"\\d+", "#", text)[:9])
random.seed(7)
print(random.randint(1, 6), random.choice("abc"), list(primes(40)), sum(x * x for x in range(9)))
print(*(word.title() for word in "a bc".split()), "%5.1f" % 2.5, {1, 2} | {3}, sep=", ")
print(Item("pen"), Item("ink", 3.5, ["a"]).total(3), Level(1).name, fibonacci(20))
print(date(2024, 5, 17) + timedelta(days=3), datetime(2024, 5, 17, 8, 30).strftime("%A %d %B"))
print(list(itertools.permutations("ab")), [list(row) for row in zip([1, 2], [3, 4])])
"""

_FAILURE = b"""\
import sys


class Stack:
    def __init__(self):
        self.items = []

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()


def main():
    print("popping", file=sys.stderr)
    Stack().pop()


if __name__ == "__main__":
    main()
"""

# What it writes to, every program writes to.
LEAST = b"print(1)\n"
USUAL = _REPORT, _FAILURE
