import re

text = "Contact: john.doe@example.com, +49 (30) 123-456 or jane@test.org"
print(re.sub(r"[\w.]+@[\w.]+", "<mail>", text))
print(re.findall(r"\+?\d[\d ()-]{6,}\d", text))
print(re.sub(r"(\w+)@(\w+)", lambda m: f"{m[2]} at {m[1]}", text))
snake = re.sub(r"(?<!^)(?=[A-Z])", "_", "someCamelCaseName").lower()
print(snake, re.split(r"[,;\s]+", "a, b;c  d"))
