name, values = "report", {"a": 1, "b": 2.5}
print(f"{name!r:>12} {values['b']:08.3f} {name=}")
print(f"{'yes' if values else 'no'} {sum(values.values()):.1f} {len(name) ** 2}")
width = 12
for key, value in values.items():
    print(f"{key:<{width}}|{value:>{width}}")
