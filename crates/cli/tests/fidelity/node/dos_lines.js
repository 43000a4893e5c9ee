// lines: dos
console.log(require("fs").readFileSync(__filename).includes("\r"));
throw new Error("here");
