# Receives what send_outside.py sends to the path given: prints the content of a file, and then that
# of one within the queue of a socket.
import os, socket, sys

def content(fd):
    try:
        return os.pread(fd, 99, 0)
    except OSError as error:
        return error.errno

listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listens", flush=True)
server = listener.accept()[0]
print(content(socket.recv_fds(server, 9, 1)[1][0])[:12])
queue = socket.socket(fileno=socket.recv_fds(server, 9, 1)[1][0])
print(content(socket.recv_fds(queue, 9, 1)[1][0]))
