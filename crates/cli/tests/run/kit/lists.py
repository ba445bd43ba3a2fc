# Access lists with raw values, and a trusted attribute: lists.py set FILE USER | get FILE | trusted FILE.
import os, struct, sys

ACL = "system.posix_acl_access"
def entry(tag, permissions, number=0xFFFFFFFF):
    return struct.pack("<HHI", tag, permissions, number)

if sys.argv[1] == "set":
    user = int(sys.argv[3])
    value = struct.pack("<I", 2) + entry(1, 6) + entry(2, 4, user) + entry(4, 0) + entry(0x10, 4) + entry(0x20, 0)
    try:
        os.setxattr(sys.argv[2], ACL, value)
    except OSError as error:
        print(error.strerror)
elif sys.argv[1] == "trusted":
    try:
        os.setxattr(sys.argv[2], "trusted.a", b"1")
    except OSError as error:
        print(error.strerror)
    print([name for name in os.listxattr(sys.argv[2]) if name.startswith("trusted")])
else:
    value = os.getxattr(sys.argv[2], ACL)
    print([struct.unpack("<HHI", value[at:at + 8]) for at in range(4, len(value), 8)])
