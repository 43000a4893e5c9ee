const wait = (ms, value) => new Promise((done) => setTimeout(done, ms, value));
async function main() {
  console.log(await Promise.all([wait(20, "a"), wait(10, "b")]));
  console.log(await Promise.race([wait(500, "slow"), wait(5, "fast")]));
  try {
    await Promise.reject(new RangeError("rejected"));
  } catch (error) {
    console.log(error.name, error.message);
  }
}
main().finally(() => console.log("end"));
