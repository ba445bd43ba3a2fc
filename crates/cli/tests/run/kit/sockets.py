# Names of sockets in the working directory, as every way of the kernel reports them, and datagrams.
import array, os, socket

def kind(style): return socket.socket(socket.AF_UNIX, style)

def fails(what, act):
    try: print(what, "works", act())
    except OSError as error: print(what, error.errno)

here = os.getcwd()
server = kind(socket.SOCK_STREAM)
server.bind("server")
server.listen()
print("bound", server.getsockname())
os.mkdir("dir")
os.chdir("dir")
client = kind(socket.SOCK_STREAM)
client.bind(here + "/client")
client.connect("../server")
print("connected", client.getsockname().replace(here, "."), client.getpeername())
accepted, name = server.accept()
print("accepted", name.replace(here, "."), accepted.getsockname())
os.chdir(here)

plain = kind(socket.SOCK_STREAM)
plain.connect("server")
print("without a name", repr(server.accept()[1]), repr(plain.getsockname()))

first, second = kind(socket.SOCK_DGRAM), kind(socket.SOCK_DGRAM)
first.bind("first")
second.bind("./second")
for receiver in (first, second): receiver.settimeout(600)
print("sendto", second.sendto(b"one", "first"), first.recvfrom(9))
print("sendto, absolute", first.sendto(b"two", here + "/second"), second.recvfrom(9))
print("sendmsg", second.sendmsg([b"th", b"ree"], [], 0, "first"), first.recvmsg(9))
nameless = kind(socket.SOCK_DGRAM)
print("nameless", nameless.sendto(b"four", "second"), second.recvfrom(9))
nameless.connect("second")
print("connected", nameless.send(b"five"), second.recvfrom(9), nameless.getpeername())
os.symlink("first", "link")
print("by a link", second.sendto(b"six", "link"), first.recvfrom(9))
os.rename("first", "renamed")
print("renamed", second.sendto(b"seven", "renamed"), first.recvfrom(9), first.getsockname())
fails("the old name", lambda: second.sendto(b"x", "first"))
open("file", "w").close()
fails("a file", lambda: second.sendto(b"x", "file"))
fails("a stream", lambda: second.sendto(b"x", "server"))
fails("a name that is in use", lambda: nameless.bind("second"))
first.close()
fails("a closed one", lambda: second.sendto(b"x", "renamed"))

with open("file", "w+") as file:
    file.write("content")
    file.flush()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()]))
    second.sendmsg([b"with a descriptor"], [rights], 0, "second")
message, fds, _, name = socket.recv_fds(second, 99, 1)
print(message, os.pread(fds[0], 9, 0), name)

network = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
for one in network: one.bind(("127.0.0.1", 0))
network[0].sendto(b"udp", network[1].getsockname())
print("udp", network[1].recvfrom(9)[1] == network[0].getsockname())

def child():
    conn = kind(socket.SOCK_STREAM)
    conn.connect("server")
    os._exit(conn.getpeername() != "server")
pid = os.fork()
if pid == 0: child()
print("in a child", os.waitpid(pid, 0)[1], repr(server.accept()[1]))
long = "n" * 100
longest = kind(socket.SOCK_STREAM)
longest.bind(long)
print("long", longest.getsockname() == long)
