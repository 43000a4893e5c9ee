// differs: process.emit
console.log(Object.getOwnPropertyNames(Object.getPrototypeOf(process)));
