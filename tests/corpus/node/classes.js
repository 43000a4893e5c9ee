class Account {
  #balance = 0;
  static #count = 0;
  constructor(owner) { this.owner = owner; Account.#count += 1; }
  deposit(amount) { this.#balance += amount; return this; }
  get balance() { return this.#balance; }
  static get count() { return Account.#count; }
  *[Symbol.iterator]() { yield this.owner; yield this.#balance; }
}
const account = new Account("Ann").deposit(5).deposit(2.5);
console.log(account, [...account], Account.count, `${account.balance.toFixed(2)}`);
console.log(structuredClone({ when: new Date(0), big: 12n ** 20n }), 0.1 + 0.2, [3, 20, 1].sort());
console.log(new Intl.NumberFormat("en-US").format(1234567.891), "straße".localeCompare("strasse"));
