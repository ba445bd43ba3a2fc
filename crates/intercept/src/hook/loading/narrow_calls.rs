//! 32-bit system calls (`int 0x80`) of 64-bit programs.
//!
//! Numbers and some structures are other ones, so the kernel would perform such a call on the
//! machine's files. They trap as in [`inline_syscalls`] and
//! [`library_syscalls`](super::library_syscalls). Then each has one of three ways:
//! - Calls whose arguments mean the same in 64 bits become those. The program's stack keeps the
//!   registers, because `int 0x80` changes none but the result's.
//! - Calls that concern neither names nor descriptors are performed by the kernel.
//! - Any other ends the program with a message: structures differ, or a child would come to be
//!   without the library's knowledge.
//!
//! Invariant: the program's stack is written by stubs only, after the handler of the trap has
//! returned: the signal's frame begins where the red zone ends.
//!
//! Decision: docs/decisions/run-calls.md, "int 0x80 becomes a 64-bit call where it can".

use crate::hook::abi::entry::RED_ZONE_BYTES;
use crate::hook::abi::sys;
use crate::hook::loading::site_slots;
use core::arch::global_asm;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// The instruction.
pub const INSTRUCTION: [u8; 2] = [0xcd, 0x80];

/// What a number leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The kernel performs it.
    Kernel,
    /// It is the 64-bit call with this number, whose second argument may be signed.
    Same(u16, bool),
    /// It is not served.
    Refused,
}

/// Limit for numbers.
const NUMBERS: usize = 452;

/// By the 32-bit number.
static WAYS: [Way; NUMBERS] = ways();

const fn ways() -> [Way; NUMBERS] {
    /// Identities, times, limits of the processor, random bytes, sleep.
    const KERNEL: [usize; 31] = [
        13, 24, 27, 43, 45, 47, 49, 50, 64, 78, 116, 122, 123, 132, 147, 158, 162, 199, 200, 201, 202, 240, 243, 244,
        265, 266, 267, 355, 403, 406, 407,
    ];
    const SAME: [(usize, i64, bool); 66] = [
        (1, libc::SYS_exit, false),
        (3, libc::SYS_read, false),
        (4, libc::SYS_write, false),
        (5, libc::SYS_open, false),
        (6, libc::SYS_close, false),
        (8, libc::SYS_creat, false),
        (9, libc::SYS_link, false),
        (10, libc::SYS_unlink, false),
        (12, libc::SYS_chdir, false),
        (14, libc::SYS_mknod, false),
        (15, libc::SYS_chmod, false),
        (19, libc::SYS_lseek, true),
        (20, libc::SYS_getpid, false),
        (33, libc::SYS_access, false),
        (36, libc::SYS_sync, false),
        (37, libc::SYS_kill, false),
        (38, libc::SYS_rename, false),
        (39, libc::SYS_mkdir, false),
        (40, libc::SYS_rmdir, false),
        (41, libc::SYS_dup, false),
        (42, libc::SYS_pipe, false),
        (57, libc::SYS_setpgid, false),
        (60, libc::SYS_umask, false),
        (61, libc::SYS_chroot, false),
        (63, libc::SYS_dup2, false),
        (83, libc::SYS_symlink, false),
        (85, libc::SYS_readlink, false),
        (92, libc::SYS_truncate, true),
        (93, libc::SYS_ftruncate, true),
        (94, libc::SYS_fchmod, false),
        (118, libc::SYS_fsync, false),
        (133, libc::SYS_fchdir, false),
        (143, libc::SYS_flock, false),
        (148, libc::SYS_fdatasync, false),
        (183, libc::SYS_getcwd, false),
        (198, libc::SYS_lchown, false),
        (207, libc::SYS_fchown, false),
        (212, libc::SYS_chown, false),
        (220, libc::SYS_getdents64, false),
        (224, libc::SYS_gettid, false),
        (226, libc::SYS_setxattr, false),
        (227, libc::SYS_lsetxattr, false),
        (228, libc::SYS_fsetxattr, false),
        (229, libc::SYS_getxattr, false),
        (230, libc::SYS_lgetxattr, false),
        (231, libc::SYS_fgetxattr, false),
        (232, libc::SYS_listxattr, false),
        (252, libc::SYS_exit_group, false),
        (295, libc::SYS_openat, false),
        (296, libc::SYS_mkdirat, false),
        (297, libc::SYS_mknodat, false),
        (298, libc::SYS_fchownat, false),
        (301, libc::SYS_unlinkat, false),
        (302, libc::SYS_renameat, false),
        (303, libc::SYS_linkat, false),
        (304, libc::SYS_symlinkat, false),
        (305, libc::SYS_readlinkat, false),
        (306, libc::SYS_fchmodat, false),
        (307, libc::SYS_faccessat, false),
        (330, libc::SYS_dup3, false),
        (331, libc::SYS_pipe2, false),
        (353, libc::SYS_renameat2, false),
        (383, libc::SYS_statx, false),
        (436, libc::SYS_close_range, false),
        (437, libc::SYS_openat2, false),
        (439, libc::SYS_faccessat2, false),
    ];
    let mut ways = [Way::Refused; NUMBERS];
    let mut index = 0;
    while index < KERNEL.len() {
        ways[KERNEL[index]] = Way::Kernel;
        index += 1;
    }
    index = 0;
    while index < SAME.len() {
        ways[SAME[index].0] = Way::Same(SAME[index].1 as u16, SAME[index].2);
        index += 1;
    }
    ways
}

fn way(number: u32) -> Way {
    WAYS.get(number as usize).copied().unwrap_or(Way::Refused)
}

/// Whether a call with this number must not stay with the kernel. `None`: it is not known.
pub fn is_relevant(number: Option<u32>) -> bool {
    number.is_none_or(|number| way(number) != Way::Kernel)
}

/// Number of sites.
const SITES: usize = 64;
/// Size of the code of each.
const STUB_BYTES: usize = 16;
/// The return address of each site; zero: it is free.
static BACKS: [AtomicU64; SITES] = [const { AtomicU64::new(0) }; SITES];
/// The slot that serves the 64-bit calls.
static SLOT: AtomicU64 = AtomicU64::new(0);
/// In the result's register beside a 64-bit number: the second argument is signed.
const IS_SIGNED: u64 = 1 << 32;

// A stub for each site and way has all registers as the site had them. It puts the return address
// below the red zone. Then the kernel's way performs the call, and the other one saves registers,
// widens arguments and goes to the slot, which returns to `directfs_narrow_back`.
global_asm!(
    r#"
    .section .text.directfs_narrow,"ax",@progbits
    .macro STUBS name, target
    .p2align 4
    .globl \name
    .hidden \name
    .type \name, @function
\name:
    .set index, 0
    .rept {sites}
    .p2align 4
    lea rsp, [rsp - 128]
    push qword ptr [rip + {backs} + 8 * index]
    jmp \target
    .set index, index + 1
    .endr
    .size \name, . - \name
    .endm
    STUBS directfs_narrow_kernel, 1f
    STUBS directfs_narrow_same, 2f
    .purgem STUBS

1:  int 0x80
    ret {red_zone}

2:  pushfq
    push rdi
    push rsi
    push rdx
    push r10
    push r8
    push r9
    push rcx
    push r11
    mov r9d, ebp
    mov r8d, edi
    mov r10d, esi
    mov edx, edx
    mov esi, ecx
    bt rax, 32
    jnc 3f
    movsxd rsi, ecx
3:  mov edi, ebx
    mov eax, eax
    jmp qword ptr [rip + {slot}]

    .globl directfs_narrow_back
    .hidden directfs_narrow_back
    .type directfs_narrow_back, @function
directfs_narrow_back:
    pop r11
    pop rcx
    pop r9
    pop r8
    pop r10
    pop rdx
    pop rsi
    pop rdi
    popfq
    ret {red_zone}
    .size directfs_narrow_back, . - directfs_narrow_back
    "#,
    sites = const SITES,
    backs = sym BACKS,
    slot = sym SLOT,
    red_zone = const RED_ZONE_BYTES,
);
const _: () = assert!(IS_SIGNED == 1 << 32 && RED_ZONE_BYTES == 128);

unsafe extern "C" {
    fn directfs_narrow_kernel();
    fn directfs_narrow_same();
    fn directfs_narrow_back();
}

/// Sends a thread that trapped at such an instruction on its way. `back`: the address behind it.
pub fn redirect(registers: &mut [libc::greg_t], back: u64) {
    let number = registers[libc::REG_RAX as usize] as u32;
    let stubs = match way(number) {
        Way::Kernel => directfs_narrow_kernel as *const () as usize,
        Way::Same(number, is_signed) => {
            let Some(slot) = site_slots::slot_of(directfs_narrow_back as *const () as u64) else { too_many() };
            SLOT.store(slot as u64, Release);
            registers[libc::REG_RAX as usize] = (u64::from(number) | if is_signed { IS_SIGNED } else { 0 }) as i64;
            directfs_narrow_same as *const () as usize
        }
        Way::Refused => refuse(number),
    };
    let Some(index) = claim(back) else { too_many() };
    registers[libc::REG_RIP as usize] = (stubs + index * STUB_BYTES) as i64;
}

/// The index of a site.
fn claim(back: u64) -> Option<usize> {
    BACKS.iter().position(|known| match known.compare_exchange(0, back, AcqRel, Acquire) {
        Ok(_) => true,
        Err(found) => found == back,
    })
}

fn too_many() -> ! {
    sys::refuse(&[b"this program contains too many inline system calls; use `directfs mount`"])
}

fn refuse(number: u32) -> ! {
    let mut digits = [0u8; 20];
    let count = crate::handoff::write_number(u64::from(number), &mut digits);
    sys::refuse(&[
        b"this program makes the 32-bit system call ",
        &digits[..count],
        b" (`int 0x80`), which `directfs run` does not serve; use `directfs mount`",
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls that make processes, run programs, or take other structures end the program.
    #[test]
    fn numbers_lead_where_they_should() {
        for refused in [2, 11, 106, 120, 190, 195, 221, 358, 435, 451, 452, u32::MAX] {
            assert_eq!(way(refused), Way::Refused, "{refused}");
        }
        assert_eq!(way(5), Way::Same(2, false));
        assert_eq!(way(19), Way::Same(8, true));
        assert_eq!(way(122), Way::Kernel);
        assert!(is_relevant(None) && is_relevant(Some(5)) && is_relevant(Some(2)) && !is_relevant(Some(122)));
    }
}
