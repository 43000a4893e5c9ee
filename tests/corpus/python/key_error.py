orders = [{"id": 1, "total": 9.5}, {"id": 2}]


def total(orders):
    return sum(order["total"] for order in orders)


print("calculating")
print(total(orders))
