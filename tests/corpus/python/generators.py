def primes():
    found = []
    candidate = 2
    while True:
        if all(candidate % prime for prime in found):
            found.append(candidate)
            yield candidate
        candidate += 1


stream = primes()
print([next(stream) for _ in range(15)])


def averages():
    total = count = 0
    average = None
    while True:
        total += yield average
        count += 1
        average = total / count


running = averages()
next(running)
print([running.send(value) for value in (10, 20, 60)])
