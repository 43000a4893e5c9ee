from collections import Counter, defaultdict

text = "the quick brown fox jumps over the lazy dog the fox"
words = Counter(text.split())
print(words.most_common(3))
by_length = defaultdict(list)
for word in sorted(words):
    by_length[len(word)].append(word)
print(dict(by_length))
print(words - Counter(["the", "fox"]), sum(words.values()))
