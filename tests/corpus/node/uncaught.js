function inner(value) {
  if (value > 2) throw new TypeError(`bad value ${value}`, { cause: "input" });
  return inner(value + 1);
}
console.log("before");
inner(0);
