x = "mine"
