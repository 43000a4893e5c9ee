# needs: matplotlib
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(4, 3))
axes.plot([1, 2, 3], [4, 1, 9], label="line")
axes.bar([1, 2, 3], [2, 3, 1], alpha=0.5)
axes.set_title("A chart")
axes.legend()
figure.savefig("chart.png", dpi=80, metadata={"Software": None})
data = open("chart.png", "rb").read()
print(data[:8], int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big"))
plt.close("all")
