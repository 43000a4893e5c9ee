print("imported")
