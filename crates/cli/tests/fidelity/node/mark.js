console.log("a mark")
