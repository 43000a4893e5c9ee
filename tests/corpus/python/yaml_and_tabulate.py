# needs: yaml tabulate
import yaml
from tabulate import tabulate

settings = yaml.safe_load("""
server: {host: localhost, port: 8080}
users: [ann, bob]
debug: true
""")
print(settings)
print(yaml.safe_dump(settings, sort_keys=True), end="")
print(tabulate([["ann", 1.5], ["bob", 22]], headers=["name", "score"], tablefmt="github"))
yaml.safe_load("a: [1, 2")
