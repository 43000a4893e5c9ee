print("a mark at the start")
