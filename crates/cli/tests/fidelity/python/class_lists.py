# differs: SystemExit.code
print(SystemExit.__dict__["code"], sorted(vars(SystemExit)))
