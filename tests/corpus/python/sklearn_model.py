# needs: sklearn
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

features, target = load_iris(return_X_y=True)
parts = train_test_split(features, target, random_state=0, test_size=0.3)
model = LogisticRegression(max_iter=500).fit(parts[0], parts[2])
print(round(model.score(parts[1], parts[3]), 3), model.predict(features[:5]))
print(KMeans(3, n_init=4, random_state=0).fit(features).inertia_.round(2))
