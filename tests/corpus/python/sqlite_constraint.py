import sqlite3

connection = sqlite3.connect("data.db")
connection.row_factory = sqlite3.Row
connection.execute("create table if not exists t (k text unique, v int check (v > 0))")
connection.execute("insert into t values ('a', 1)")
connection.commit()
row = connection.execute("select * from t").fetchone()
print(dict(row), row.keys())
connection.execute("insert into t values ('a', 2)")
