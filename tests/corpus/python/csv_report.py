import csv
import io
from collections import defaultdict

data = """region,product,amount
north,apple,10
south,apple,5
north,pear,7
east,"plum, dried",3
"""
totals = defaultdict(int)
for row in csv.DictReader(io.StringIO(data)):
    totals[row["region"]] += int(row["amount"])

with open("report.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["region", "total"])
    writer.writerows(sorted(totals.items()))
print(open("report.csv").read())
