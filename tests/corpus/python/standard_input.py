# stdin: "3\nAnn 30\nBob 25\nCid 41\n"
import sys

count = int(input("how many? "))
people = [input().split() for _ in range(count)]
print(max(people, key=lambda person: int(person[1]))[0], repr(sys.stdin.read()))
input()
