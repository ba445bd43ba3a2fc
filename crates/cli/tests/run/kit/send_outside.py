# Sends a descriptor of a file in the working directory, and one of a file elsewhere, to the process
# that listens at the path given, and to one of its own.
import array, os, socket, sys

def send(to, fd):
    try:
        to.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
        return "sent"
    except OSError as error:
        return error.errno

with open("file", "w+") as file: print("file", file=file)
inside, elsewhere = os.open("file", os.O_RDONLY), os.open(sys.argv[0], os.O_RDONLY)
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
print("outside:", send(client, inside), send(client, elsewhere))
# Within a socket, whose receiver is not known when the descriptor is sent.
first, second = socket.socketpair()
print("in a socket's queue:", send(first, inside), send(client, second.fileno()))
own = socket.socket(socket.AF_UNIX)
own.bind("own")
own.listen()
if os.fork() == 0:
    client = socket.socket(socket.AF_UNIX)
    client.connect("own")
    os._exit(send(client, inside) != "sent")
fds = socket.recv_fds(own.accept()[0], 9, 1)[1]
print("inside:", os.read(fds[0], 9), os.wait()[1])
first, second = socket.socketpair()
print("to itself:", send(first, inside), os.pread(socket.recv_fds(second, 9, 1)[1][0], 9, 0))
# A pair outlives the process that made it, which its parent has not waited for.
begin, end = os.pipe()
results, result = os.pipe()
if os.fork() == 0:
    first, second = socket.socketpair()
    if os.fork() == 0:
        os.close(end)
        os.read(begin, 1)
        sent = str(send(first, inside))
        os.write(result, b"%s " % sent.encode())
        if sent == "sent":
            os.write(result, os.pread(socket.recv_fds(second, 9, 1)[1][0], 9, 0))
    os._exit(0)
os.close(end)
os.close(result)
os.read(begin, 1)
print("by the pair of an ended process:", os.read(results, 5), os.read(results, 9))
