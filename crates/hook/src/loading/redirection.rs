//! Sends a thread that trapped at a call site to the site's slot.

use crate::abi::sys;
use crate::loading::armed_threads::is_armed;
use crate::loading::inline_syscalls::CALL;
use crate::loading::site_slots::{NATIVE, claim_slot, find, slot_address};
use crate::loading::{hot_sites, narrow_calls};
use crate::process::leak_tracer;
use libc::{siginfo_t, ucontext_t};

/// The kernel's information on the signal.
#[repr(C)]
struct SigsysInfo {
    number: i32,
    errno: i32,
    code: i32,
    unused: i32,
    call: u64,
    call_number: i32,
    architecture: u32,
}

/// Sends a thread whose call raised the signal to the site's slot. False: it was another signal.
///
/// # Safety
/// Only for the handler of the signal, with the arguments from the kernel.
pub unsafe fn redirect(info: *const siginfo_t, context: *mut ucontext_t) -> bool {
    const SYS_USER_DISPATCH: i32 = 2;
    const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
    // SAFETY: the kernel made both.
    let (is_directfs, architecture, registers) = unsafe {
        let sigsys = &*info.cast::<SigsysInfo>();
        let is_directfs = sigsys.code == SYS_USER_DISPATCH && is_armed();
        (is_directfs, sigsys.architecture, &mut (*context).uc_mcontext.gregs)
    };
    if !is_directfs {
        return false;
    }
    let back = registers[libc::REG_RIP as usize] as u64;
    if architecture != AUDIT_ARCH_X86_64 {
        narrow_calls::refuse(registers[libc::REG_RAX as usize] as u32);
    }
    match find(back).or_else(|| claim_slot(back)) {
        Some(index) => {
            hot_sites::count(index, slot_address(index) as u64, (back as usize - CALL.len(), false), registers);
            registers[libc::REG_RIP as usize] = slot_address(index);
        }
        None => sys::refuse(&[b"this program contains too many inline system calls; use `directfs mount`"]),
    }
    true
}

/// Sends a thread that trapped at a site of a library to the site's slot. False: it was another
/// fault.
pub fn redirect_trap(registers: &mut [libc::greg_t]) -> bool {
    const BYTES: i64 = 2;
    let back = registers[libc::REG_RIP as usize] + BYTES;
    let Some(index) = find(back as u64) else { return false };
    // SAFETY: the instruction that trapped, which was just executed.
    if unsafe { ((back - 1) as *const u8).read() } == narrow_calls::INSTRUCTION[1] {
        narrow_calls::refuse(registers[libc::REG_RAX as usize] as u32);
    }
    let is_tracer = leak_tracer::is_running(registers[libc::REG_RSP as usize] as u64);
    if !is_tracer {
        hot_sites::count(index, slot_address(index) as u64, ((back - BYTES) as usize, true), registers);
    }
    registers[libc::REG_RIP as usize] = slot_address(index);
    if is_tracer {
        registers[libc::REG_RIP as usize] += NATIVE;
        if leak_tracer::takes_signal(registers) {
            (registers[libc::REG_RAX as usize], registers[libc::REG_RIP as usize]) = (0, back);
        }
    }
    true
}
