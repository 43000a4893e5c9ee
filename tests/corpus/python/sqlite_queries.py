import sqlite3

database = sqlite3.connect("shop.db")
database.executescript("""
    create table customer (id integer primary key, name text);
    create table purchase (customer integer references customer, amount real);
""")
database.executemany("insert into customer values (?, ?)", [(1, "Ann"), (2, "Bob")])
database.executemany("insert into purchase values (?, ?)", [(1, 9.5), (1, 3.25), (2, 4.0)])
database.commit()
query = """
    select name, count(*), sum(amount) from customer join purchase on customer.id = customer
    group by name order by 3 desc
"""
for row in database.execute(query):
    print(row)
try:
    database.execute("select nothing from nowhere")
except sqlite3.OperationalError as error:
    print("error:", error)
database.close()
