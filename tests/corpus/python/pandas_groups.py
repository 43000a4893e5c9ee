# needs: pandas
import pandas as pd

frame = pd.DataFrame({
    "city": ["Rome", "Oslo", "Rome", "Oslo", "Bern"],
    "year": [2020, 2020, 2021, 2021, 2021],
    "sales": [10.5, 7.0, None, 9.25, 3.0],
})
print(frame)
print(frame.groupby("city")["sales"].agg(["sum", "mean", "count"]))
print(frame.pivot_table(index="city", columns="year", values="sales", aggfunc="sum"))
print(frame.describe())
frame.to_csv("frame.csv", index=False)
print(pd.read_csv("frame.csv").fillna(0).sort_values(["year", "city"]).to_string())
