import sqlite3

connection = sqlite3.connect("left.db")
connection.execute("create table t (n int)")
connection.commit()
connection.execute("insert into t values (1)")
print(connection.in_transaction, connection.total_changes)
