# lines: cut
print("no newline at the end", open(__file__, "rb").read()[-2:])
