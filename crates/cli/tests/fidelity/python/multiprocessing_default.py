import concurrent.futures
import multiprocessing as mp


def square(x):
    return x * x


print(mp.get_start_method(), mp.current_process(), mp.active_children(), mp.parent_process())
if __name__ == "__main__":
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        print(list(pool.map(square, range(5))))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        print(list(pool.map(square, range(5))))
    child = mp.Process(target=print, args=("left running",))
    child.start()
