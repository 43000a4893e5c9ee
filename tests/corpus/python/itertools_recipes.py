from itertools import accumulate, chain, combinations, groupby, islice, permutations, product

print(list(accumulate([1, 2, 3, 4])), list(chain([1], [2, 3])))
print(["".join(pair) for pair in combinations("ABC", 2)], len(list(permutations(range(4)))))
words = sorted(["apple", "avocado", "bean", "corn", "carrot"])
for key, group in groupby(words, key=lambda word: word[0]):
    print(key, list(group))
print(list(islice(product("ab", repeat=2), 3)))
