import string
import textwrap
import unicodedata
from difflib import unified_diff

text = "Sphinx of black quartz, judge my vow. " * 3
print(textwrap.fill(text, 40))
print(string.Template("$who owes $$${amount}").substitute(who="Ann", amount=5))
print(unicodedata.normalize("NFKD", "Crème brûlée").encode("ascii", "ignore").decode())
old, new = "a\nb\nc\n".splitlines(True), "a\nx\nc\n".splitlines(True)
print("".join(unified_diff(old, new, "old", "new")), end="")
print(f"{1234567.891:,.2f} {255:#x} {0.1234:.1%} {'mid':^9}|")
