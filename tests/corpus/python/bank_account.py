class InsufficientFunds(Exception):
    def __init__(self, wanted, balance):
        super().__init__(f"cannot withdraw {wanted}, balance is {balance}")


class Account:
    def __init__(self, owner, balance=0):
        self.owner, self._balance = owner, balance

    @property
    def balance(self):
        return self._balance

    def withdraw(self, amount):
        if amount > self._balance:
            raise InsufficientFunds(amount, self._balance)
        self._balance -= amount
        return self

    def __repr__(self):
        return f"Account({self.owner!r}, {self._balance})"


account = Account("Ann", 100)
print(account.withdraw(30), account.balance)
account.withdraw(500)
