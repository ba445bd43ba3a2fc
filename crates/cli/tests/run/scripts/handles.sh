# needs: python3
# name_to_handle_at and open_by_handle_at.
set -eu
if [ "$(id -u)" != 0 ]; then exit 0; fi
chmod 755 .
python3 "$KIT/handles.py"
