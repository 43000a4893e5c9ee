def primes(limit):
    sieve = bytearray([1]) * (limit + 1)
    sieve[:2] = b"\0\0"
    for number in range(2, int(limit**0.5) + 1):
        if sieve[number]:
            sieve[number * number::number] = bytes(len(range(number * number, limit + 1, number)))
    return [number for number, is_prime in enumerate(sieve) if is_prime]


found = primes(5000)
print(len(found), found[:10], found[-1], sum(found))
