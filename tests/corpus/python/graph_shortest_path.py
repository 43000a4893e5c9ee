import heapq

GRAPH = {"A": {"B": 4, "C": 1}, "B": {"D": 1}, "C": {"B": 2, "D": 5}, "D": {}}


def dijkstra(graph, start):
    distances = {node: float("inf") for node in graph}
    distances[start] = 0
    queue = [(0, start)]
    while queue:
        distance, node = heapq.heappop(queue)
        if distance > distances[node]:
            continue
        for neighbour, weight in graph[node].items():
            if distance + weight < distances[neighbour]:
                distances[neighbour] = distance + weight
                heapq.heappush(queue, (distance + weight, neighbour))
    return distances


print(dijkstra(GRAPH, "A"))
