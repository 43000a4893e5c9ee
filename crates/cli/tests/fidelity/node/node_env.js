// env: NODE_ENV=production
console.log(process.env.NODE_ENV);
