import textwrap
from string import Template

rows = [("Widget", 4, 3.5), ("Gadget", 10, 12.25), ("Thing", 1, 100)]
print(f"{'name':<10}{'count':>6}{'price':>10}")
for name, count, price in rows:
    print(f"{name:<10}{count:>6}{price:>10.2f}")
print(f"{'total':<10}{sum(r[1] for r in rows):>6}{sum(r[1] * r[2] for r in rows):>10,.2f}")
print(textwrap.fill("A long sentence that has to be wrapped into several lines of text.", 30))
print(Template("$who owes $$${sum}").substitute(who="Ann", sum=5))
