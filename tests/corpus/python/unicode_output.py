print("ünïcödé ✓ 日本語 🐍")
print("\N{GREEK SMALL LETTER PI}".encode("utf-8"), len("🐍"), "ß".upper())
print("naïve café".title(), sorted(["ä", "z", "a"]))
print(ascii("é"), repr("\x00\x7f"))
