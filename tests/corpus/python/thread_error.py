import threading


def work():
    raise ValueError("in a thread")


thread = threading.Thread(target=work, name="worker")
thread.start()
thread.join()
print("main goes on")
