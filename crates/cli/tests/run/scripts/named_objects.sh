# needs: python3
# FIFOs and sockets, which the kernel serves: attributes by descriptor, and rights that change.
set -eu
python3 "$KIT/named_objects.py"
