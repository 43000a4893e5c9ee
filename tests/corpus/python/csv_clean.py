import csv
import io

raw = """name, age ,city
 Ann ,34, Berlin
Bob,,Paris
"Eve, Jr.",twelve,Rome
"""
rows = []
for row in csv.DictReader(io.StringIO(raw), skipinitialspace=True):
    row = {key.strip(): (value or "").strip() for key, value in row.items()}
    row["age"] = int(row["age"]) if row["age"].isdigit() else None
    rows.append(row)
out = io.StringIO()
writer = csv.DictWriter(out, fieldnames=["name", "age", "city"], lineterminator="\n")
writer.writeheader()
writer.writerows(rows)
print(out.getvalue(), end="")
