import sqlite3

with sqlite3.connect(":memory:") as connection:
    connection.execute("create table users (id integer primary key, name text, age int)")
    connection.executemany("insert into users (name, age) values (?, ?)",
                           [("Ann", 31), ("Bob", 25), ("Cid", 40)])
cursor = connection.execute("select name, age from users where age > ? order by age", (26,))
print(cursor.fetchall(), connection.execute("select avg(age) from users").fetchone())
connection.close()
