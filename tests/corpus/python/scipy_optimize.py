# needs: scipy
import numpy as np
from scipy import integrate, interpolate, optimize, stats

best = optimize.minimize(lambda v: (v[0] - 1) ** 2 + (v[1] + 2) ** 2, [0, 0])
print(best.success, best.x.round(3))
print(round(integrate.quad(np.cos, 0, np.pi / 2)[0], 9))
spline = interpolate.CubicSpline([0, 1, 2, 3], [0, 1, 4, 9])
print(float(spline(1.5).round(9)), stats.norm.cdf(1.96).round(6))
print(stats.ttest_ind([1, 2, 3, 4], [2, 3, 4, 6]).pvalue.round(6))
