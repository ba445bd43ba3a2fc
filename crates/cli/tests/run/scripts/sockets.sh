# needs: python3
# Names of sockets, and datagrams.
set -eu
python3 "$KIT/sockets.py"
