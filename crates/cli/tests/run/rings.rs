//! What io_uring does under `run` and not elsewhere: requests that could pass the library by are
//! refused, and so is what it cannot perform. The script `rings` compares all others with tmpfs.

use crate::kit::compiled;
use crate::support::{directfs, scratch, stderr, stdout};

#[test]
fn what_passes_the_library_by_is_refused() {
    let directory = scratch();
    let Some(program) = compiled("rings", directory.path()) else { return };
    let run = directfs(&["run", "-C", "/mnt/directfs", "--", program.to_str().unwrap(), "refused", "/dev/shm"]);
    let expected = "only registered -22
unknown flag -22
files 0
descriptor -22
by a registered descriptor -22
no descriptor -22
a file to a ring of another process: submitted 1, completed 1: -95
splice by index: submitted 1, completed 1: -22
splice: submitted 1, completed 1: -22
a descriptor in a message: submitted 1, completed 1: -95
messages without: submitted 2, completed 2: 1 1
after a poll: submitted 2, completed 2: 4 -95
errors take no buffer: submitted 3, completed 3: 0 -9 -21
after a selected buffer: submitted 2, completed 2: 0 flags 1 -95
a selected buffer in a chain: submitted 2, completed 2: 0 -95
a selected buffer after a barrier: submitted 2, completed 2: 0 -95
of a duplicate -95
of no ring -95 -9
size 0
";
    if stdout(&run) == "no rings\n" {
        eprintln!("\n*** SKIPPED: this kernel has no rings that the library can serve ***\n");
        return;
    }
    assert_eq!(stdout(&run), expected, "{}", stderr(&run));
}
