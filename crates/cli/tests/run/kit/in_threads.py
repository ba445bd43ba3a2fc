# Reads files in the main thread, in another one, and in a child.
import os, threading
def act(name):
    try: open(name).read(); print(name, "read")
    except OSError as error: print(name, error.strerror)
    print(os.stat(name).st_uid)
for name in ("f", "mine"):
    act(name)
    thread = threading.Thread(target=act, args=(name,)); thread.start(); thread.join()
    child = os.fork()
    if child == 0: act(name); os._exit(0)
    os.waitpid(child, 0)
