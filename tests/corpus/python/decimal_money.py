from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, getcontext

getcontext().prec = 28
price, rate = Decimal("19.99"), Decimal("0.0825")
tax = (price * rate).quantize(Decimal("0.01"), rounding=ROUND_HALF_UP)
print(price + tax, Decimal(1) / Decimal(7), sum([Decimal("0.1")] * 3) == Decimal("0.3"))
try:
    Decimal("abc")
except InvalidOperation as error:
    print("invalid:", error)
