console.log("never")
const a = ;
