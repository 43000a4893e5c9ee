from collections import Counter, OrderedDict, defaultdict, deque
from itertools import accumulate, chain, combinations, groupby, product

words = "the quick brown fox jumps over the lazy dog the end".split()
print(Counter(words).most_common(2))
print({key: list(group) for key, group in groupby(sorted(words, key=len), key=len)})
print(list(accumulate(range(1, 6), lambda a, b: a * b)))
print(list(combinations("abc", 2)), len(list(product(range(3), repeat=3))))
recent = deque(maxlen=3)
recent.extend(range(10))
print(recent, list(chain.from_iterable([[1], [2, 3]])))
graph = defaultdict(list)
for a, b in [(1, 2), (1, 3), (2, 3)]:
    graph[a].append(b)
print(dict(graph), OrderedDict(b=1, a=2))
