# needs: java
# Java's WatchService sees changes of its own process and of others.
set -eu
cat >Watch.java <<'Y'
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.TimeUnit;
import static java.nio.file.StandardWatchEventKinds.*;

class Watch {
    public static void main(String[] arguments) throws Exception {
        Path directory = Files.createDirectories(Path.of("watched"));
        WatchService watcher = FileSystems.getDefault().newWatchService();
        directory.register(watcher, ENTRY_CREATE, ENTRY_DELETE);
        Files.writeString(directory.resolve("own"), "x");
        new ProcessBuilder("sh", "-c", "echo >watched/other; rm watched/own; mv watched/other watched/moved").start().waitFor();
        List<String> seen = new ArrayList<>();
        while (seen.size() < 5) {
            WatchKey key = watcher.poll(600, TimeUnit.SECONDS);
            if (key == null) throw new Exception("only " + seen);
            for (WatchEvent<?> event : key.pollEvents()) seen.add(event.kind() + " " + event.context());
            key.reset();
        }
        seen.forEach(System.out::println);
    }
}
Y
java Watch.java
