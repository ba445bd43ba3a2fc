# A binary package of the tree $1, and a root directory for dpkg.
mkdir -p deb/DEBIAN deb/usr root/var/lib/dpkg/info root/var/lib/dpkg/updates
cp -r "$1" deb/usr/include
printf 'Package: generated\nVersion: 1\nArchitecture: all\nMaintainer: bench <bench@localhost>\n' > deb/DEBIAN/control
echo 'Description: files of a benchmark' >> deb/DEBIAN/control
dpkg-deb -Znone --build deb tree.deb
rm -r deb
: > root/var/lib/dpkg/status
: > root/var/lib/dpkg/available
