# needs: perl
# Files in perl: in-place editing, directories, locks, tied files, processes.
set -eu
perl -e 'for (1..300) { open my $f, ">", "f$_" or die; print $f "line $_\n" x 10; close $f } print scalar(() = glob("f*")), "\n"'
perl -pi -e 's/line/LINE/' f1 f2; cat f1 | head -1; perl -i.bak -ne 'print if $. % 2' f3; wc -l f3 f3.bak
perl -e 'opendir D, "."; print scalar(grep !/^\./, readdir D), "\n"; rewinddir D; my @t; push @t, telldir D while readdir D; print scalar(@t) > 300 ? "told\n" : "few\n"'
perl -MFile::Find -MFile::Copy -MFile::Path=make_path,remove_tree -e 'make_path("a/b/c"); copy("f1", "a/b/c/x"); move("f2", "a/y"); find({wanted => sub { print "$File::Find::name\n" }, preprocess => sub { sort @_ }}, "a"); remove_tree("a"); print -e "a" ? "left\n" : "gone\n"'
perl -MFcntl=:flock -e 'open F, ">>", "lock"; flock F, LOCK_EX; if (!fork) { open G, ">>", "lock"; print flock(G, LOCK_EX | LOCK_NB) ? "both\n" : "locked\n"; exit } wait; print F "x"; close F; print -s "lock", "\n"'
perl -e '@s = stat "f5"; printf "%o %d %d\n", $s[2], $s[3], $s[7]; utime 1000, 2000, "f5"; print +(stat "f5")[9], "\n"; chmod 0600, "f5"; rename "f5", "g5"; link "g5", "h5"; symlink "g5", "s5"; print readlink("s5"), " ", +(lstat "s5")[7], "\n"; truncate "g5", 4; print -s "h5", "\n"; unlink "h5"; mkdir "m", 0700; rmdir "m"'
perl -e 'open F, "+>", "r"; print F "abcdef"; seek F, 2, 0; read F, $x, 2; print "$x\n"; sysopen G, "r", 0; sysread G, $y, 100; print "$y\n"; open H, "-|", "cat r"; print <H>, "\n"; open I, "|-", "cat >piped"; print I "through"; close I; open J, "<", "piped"; print <J>, "\n"; open STDOUT, ">", "stdout"; print "redirected"; system "echo child"; close STDOUT' ; cat stdout
perl -MStorable -e 'store {a => [1..10]}, "st"; print retrieve("st")->{a}[9], "\n"'; rm st
perl -MSDBM_File -MFcntl -e 'tie %h, "SDBM_File", "sdbm", O_RDWR|O_CREAT, 0644; $h{$_} = $_ x 3 for 1..200; untie %h; tie %h, "SDBM_File", "sdbm", O_RDWR, 0644; print $h{77}, " ", scalar(keys %h), "\n"'
perl -e 'for $n (1..5) { if (!fork) { open F, ">>", "shared"; syswrite F, "$n\n" for 1..50; exit } } 1 while wait > 0; open F, "<", "shared"; my %c; $c{$_}++ while <F>; print join(",", map { chomp; $_ } sort keys %c), " ", $c{"3\n"}, "\n"'; sort -o shared shared
