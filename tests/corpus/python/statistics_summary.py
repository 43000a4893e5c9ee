import statistics

data = [2.5, 3.1, 4.7, 5.0, 3.3, 9.9, 4.1]
print(round(statistics.mean(data), 3), statistics.median(data), round(statistics.stdev(data), 4))
print([round(cut, 3) for cut in statistics.quantiles(data, n=4)])
print(statistics.mode("aabbbc"), statistics.multimode([1, 1, 2, 2]))
print(round(statistics.correlation([1, 2, 3], [2, 4, 7]), 5))
print(statistics.mean([]))
