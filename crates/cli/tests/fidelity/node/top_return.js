return console.log("at the top");
