for number in range(2000):
    print(number, "x" * (number % 50))
