const orders = [{ id: 1, total: 7.5 }, { id: 2, total: 0, note: "grüße ✓" }];
console.log(JSON.stringify(orders, null, 2));
console.log(new Map(orders.map((order) => [order.id, order])), new Set([1, 2, 2]));
console.table(orders.map(({ id, total }) => ({ id, total })));
console.error("to stderr");
