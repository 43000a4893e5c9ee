// lines: cut
console.log("no newline at the end")
