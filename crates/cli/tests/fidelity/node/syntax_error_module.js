console.log("never")
const a = await ;
export {}
