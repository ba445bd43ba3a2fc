# The source of a Debian package, in the directory `package`, with $1 files.
mkdir -p package/debian/source && cd package || exit 1
echo '3.0 (native)' > debian/source/format
cat > debian/control << 'END'
Source: generated
Maintainer: bench <bench@localhost>
Rules-Requires-Root: no

Package: generated
Architecture: any
Description: files of a benchmark
END
cat > debian/changelog << 'END'
generated (1) unstable; urgency=low

  * Generated.

 -- bench <bench@localhost>  Mon, 01 Jan 2024 00:00:00 +0000
END
cat > debian/rules << 'END'
#!/usr/bin/make -f
build build-arch build-indep: $(patsubst %.c,%.o,$(wildcard *.c))
binary binary-arch binary-indep: build
	mkdir -p debian/generated/DEBIAN debian/generated/usr/lib/generated
	cp *.o debian/generated/usr/lib/generated
	dpkg-gencontrol -Pdebian/generated
	dpkg-deb --root-owner-group --build debian/generated ..
clean:
	rm -rf debian/generated debian/files *.o
END
chmod +x debian/rules
i=0
while [ $i -lt "$1" ]; do
  i=$((i + 1))
  echo "int function_$i(int x) { return x * $i; }" > file_$i.c
done
