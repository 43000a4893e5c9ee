# needs: pandas
import pandas as pd

days = pd.date_range("2026-01-30", periods=5, freq="D")
series = pd.Series(range(5), index=days)
print(series)
print(series.resample("2D").sum(), series.rolling(2).mean(), sep="\n")
left = pd.DataFrame({"k": [1, 2, 3], "a": list("xyz")})
print(left.merge(pd.DataFrame({"k": [2, 3, 4], "b": [True, False, True]}), how="outer"))
print(left["missing"])
