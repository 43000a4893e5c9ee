import gc


class Node:
    pass


nodes = [Node() for _ in range(3)]
print(sum(isinstance(o, Node) for o in gc.get_objects()), gc.get_referrers(nodes[0]) == [nodes])
cycle = Node()
cycle.me = cycle
del cycle
print(gc.collect() >= 1, gc.is_tracked(nodes), gc.is_finalized(nodes[0]))
gc.callbacks.append(lambda phase, info: print(phase, info["generation"]))
gc.collect(0)
gc.callbacks.clear()
