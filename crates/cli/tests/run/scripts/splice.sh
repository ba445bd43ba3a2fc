# needs: python3
# splice does not wait if it must not, and moves as much as it can.
set -eu
python3 "$KIT/splice.py"
