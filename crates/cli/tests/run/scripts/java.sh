# needs: java javac jar
# Compiling and running Java: class files, jars, mapped files, locks.
set -eu
mkdir -p src/p
cat >src/p/Main.java <<'X'
package p;
import java.io.*; import java.nio.*; import java.nio.channels.*; import java.nio.file.*; import java.nio.file.attribute.*; import java.util.stream.*;
public class Main {
    public static void main(String[] a) throws Exception {
        Path d = Files.createDirectories(Path.of("data/x")); for (int i = 0; i < 100; i++) Files.writeString(d.resolve("f" + i), "content " + i);
        try (Stream<Path> s = Files.list(d)) { System.out.println(s.count()); } try (Stream<Path> s = Files.walk(Path.of("data"))) { System.out.println(s.filter(Files::isRegularFile).count()); }
        Files.move(d.resolve("f1"), d.resolve("g1")); Files.copy(d.resolve("f2"), d.resolve("g2")); Files.delete(d.resolve("f2")); System.out.println(Files.readString(d.resolve("g1")) + Files.exists(d.resolve("f1")));
        try (RandomAccessFile f = new RandomAccessFile("map", "rw"); FileChannel c = f.getChannel(); FileLock l = c.lock()) { MappedByteBuffer m = c.map(FileChannel.MapMode.READ_WRITE, 0, 8192); m.put(5000, (byte) 7); m.force(); f.seek(5000); System.out.println(f.read() + " " + f.length()); }
        Files.setLastModifiedTime(d.resolve("g1"), FileTime.fromMillis(1000)); Files.setPosixFilePermissions(d.resolve("g1"), PosixFilePermissions.fromString("rw-r-----")); System.out.println(Files.getLastModifiedTime(d.resolve("g1")).toMillis() + " " + Files.getPosixFilePermissions(d.resolve("g1")).size());
        Files.createSymbolicLink(Path.of("data/l"), Path.of("x/g1")); System.out.println(Files.readSymbolicLink(Path.of("data/l")) + " " + Files.isSameFile(Path.of("data/l"), d.resolve("g1")));
        Files.createLink(Path.of("data/h"), d.resolve("g1")); Path t = Files.createTempFile(Path.of("data"), "t", ""); Files.delete(t); System.out.println(new File("data").list().length);
        Process p = new ProcessBuilder("cat").redirectInput(new File("data/h")).redirectOutput(new File("out")).directory(new File("data")).start(); System.out.println(p.waitFor() + Files.readString(Path.of("out")));
    }
}
X
javac -d classes src/p/Main.java; java -Xshare:auto -XX:-UsePerfData -cp classes p.Main; jar cfe app.jar p.Main -C classes .; jar tf app.jar | sort; rm -rf data map out; java -XX:-UsePerfData -jar app.jar | tail -1; rm app.jar
