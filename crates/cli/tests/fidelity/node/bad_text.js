console.log("ÿ")
