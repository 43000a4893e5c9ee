process.exitCode = 4;
setTimeout(() => console.log("never"), 1000);
Promise.reject(new Error("nobody listens"));
