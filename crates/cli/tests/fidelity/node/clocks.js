// differs: performance.timeOrigin
console.log(Math.floor(process.uptime() * 1e6), performance.timeOrigin);
