// env: NODE_NO_WARNINGS=1
// env: NODE_ENV=production
// anew: Node reads whether to warn when it starts
process.emitWarning('not shown');
console.log(process.env.NODE_ENV, process.env.NODE_NO_WARNINGS);
