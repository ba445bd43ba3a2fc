//! The assembly path from a call site to the dispatcher and back.
//!
//! At [`directfs_entry`] registers are as the program had them at its `syscall`, except r11, which
//! holds the address of the `syscall` in the slot. All other registers are preserved. `lahf` and
//! `seto` save the flags, because `popf` costs more than the rest of the filter.
//!
//! For the dispatcher the entry saves the lower 16 bytes of the first sixteen vector registers:
//! code for the architecture's baseline can change no others. The path through the dispatcher and
//! back costs 22 ns this way, against 68 ns with `xsavec` and `xrstor` of all state in use. So
//! nothing in the preload library may use AVX; a test disassembles it.
//!
//! The dispatcher sees the frame [`Frame`]. Its unwind information leads from the dispatcher to the
//! instruction after the call in the slot, and from any place in a slot to the site. Thread
//! cancellation and debuggers therefore see the program's own frames.

use crate::abi::entry::{
    DIRECTFS_ALL, DIRECTFS_CWD, DIRECTFS_FD_COUNT, DIRECTFS_FDS, DIRECTFS_PARKED, DIRECTFS_PREFIX, FDS_MAX,
    FROM_ALTERNATE, Next, SLOT_BYTES, SLOT_RETURN, SLOTS, thread_macros,
};
use crate::call_table::TABLE;
use core::arch::global_asm;

/// Size of the saved vector registers.
const SAVE_BYTES: usize = 16 * 16;
#[cfg(feature = "loader")]
const _: () = assert!(core::mem::offset_of!(crate::abi::thread_words::ThreadWords, this) == 96);
#[cfg(feature = "loader")]
const _: () = assert!(Next::Thread as u32 == 5);

#[cfg(not(feature = "loader"))]
global_asm!(
    r#"
    // Words of each thread: see thread_words.rs.
    .section .tbss.directfs,"awT",@nobits
    .p2align 3
    .globl directfs_words
    .hidden directfs_words
    .type directfs_words, @object
    .size directfs_words, {words_bytes}
directfs_words:
    .zero {words_bytes}

    .section .text.directfs_tls,"ax",@progbits
    .globl directfs_tls
    .hidden directfs_tls
    .type directfs_tls, @function
directfs_tls:
    .cfi_startproc
    mov rax, qword ptr [rip + directfs_words@GOTTPOFF]
    add rax, qword ptr fs:[0]
    ret
    .cfi_endproc
    .size directfs_tls, . - directfs_tls
    "#,
    words_bytes = const crate::abi::thread_words::WORDS_BYTES,
);

#[cfg(feature = "loader")]
global_asm!(
    r#"
    .section .text.directfs_tls,"ax",@progbits
    .globl directfs_tls
    .hidden directfs_tls
    .type directfs_tls, @function
directfs_tls:
    .cfi_startproc
    mov rax, qword ptr gs:[96]
    ret
    .cfi_endproc
    .size directfs_tls, . - directfs_tls
    "#
);

global_asm!(
    thread_macros!(),
    r#"
    // The slots. A frame in a slot is unwound as if it were at the site: nothing changes, and the
    // return address is the one at the slot's end.
    .section .text.directfs_slots,"ax",@progbits
    .p2align 12
    .globl directfs_slots
    .hidden directfs_slots
    .type directfs_slots, @object
directfs_slots:
    .cfi_startproc
    .cfi_def_cfa rsp, 0
    .cfi_escape 0x16, 16, 10, 0x80, 0, 0x09, {slot_mask}, 0x1a, 0x12, 0x23, {slot_return}, 0x06, 0x22
    "#,
    #[cfg(not(feature = "loader"))]
    ".zero {slots_bytes}",
    // All slots are for sites that are found later, so they have that content from the start:
    // `patch::inline_syscall_content`, with an address of no code in place of zero.
    #[cfg(feature = "loader")]
    r#"
    .set .Lslot, 0
    .rept {slots}
    lea r11, [rip + 5]
    .byte 0xe9
    .long directfs_entry - . - 4
    syscall
    .byte 0xff, 0x25
    .long {back} + 8 * .Lslot - . - 4
    syscall
    lea r11, [rip + 5]
    .byte 0xe9
    .long directfs_begin - . - 4
    .byte 0xff, 0x25
    .long {back} + 8 * .Lslot - . - 4
    .fill {slot_return} - 40, 1, 0xcc
    .quad __ehdr_start - . + {slot_return}
    .set .Lslot, .Lslot + 1
    .endr
    "#,
    r#"
    .cfi_endproc
    .size directfs_slots, {slots_bytes}
    .p2align 12

    // State that code without AVX can change: the lower halves of sixteen registers. Legacy
    // instructions keep the upper halves.
    .macro SAVE_VECTORS
    movaps xmmword ptr [rsp + 0], xmm0
    movaps xmmword ptr [rsp + 16], xmm1
    movaps xmmword ptr [rsp + 32], xmm2
    movaps xmmword ptr [rsp + 48], xmm3
    movaps xmmword ptr [rsp + 64], xmm4
    movaps xmmword ptr [rsp + 80], xmm5
    movaps xmmword ptr [rsp + 96], xmm6
    movaps xmmword ptr [rsp + 112], xmm7
    movaps xmmword ptr [rsp + 128], xmm8
    movaps xmmword ptr [rsp + 144], xmm9
    movaps xmmword ptr [rsp + 160], xmm10
    movaps xmmword ptr [rsp + 176], xmm11
    movaps xmmword ptr [rsp + 192], xmm12
    movaps xmmword ptr [rsp + 208], xmm13
    movaps xmmword ptr [rsp + 224], xmm14
    movaps xmmword ptr [rsp + 240], xmm15
    .endm
    .macro LOAD_VECTORS
    movaps xmm0, xmmword ptr [rsp + 0]
    movaps xmm1, xmmword ptr [rsp + 16]
    movaps xmm2, xmmword ptr [rsp + 32]
    movaps xmm3, xmmword ptr [rsp + 48]
    movaps xmm4, xmmword ptr [rsp + 64]
    movaps xmm5, xmmword ptr [rsp + 80]
    movaps xmm6, xmmword ptr [rsp + 96]
    movaps xmm7, xmmword ptr [rsp + 112]
    movaps xmm8, xmmword ptr [rsp + 128]
    movaps xmm9, xmmword ptr [rsp + 144]
    movaps xmm10, xmmword ptr [rsp + 160]
    movaps xmm11, xmmword ptr [rsp + 176]
    movaps xmm12, xmmword ptr [rsp + 192]
    movaps xmm13, xmmword ptr [rsp + 208]
    movaps xmm14, xmmword ptr [rsp + 224]
    movaps xmm15, xmmword ptr [rsp + 240]
    .endm

    .macro RESTORE
    pop rdx
    pop rax
    add al, 127
    sahf
    pop rax
    lea rsp, [rsp + 128]
    .endm

    // To the dispatcher if the descriptor's byte has a bit of `mask`.
    .macro CHECK_FD reg, mask={served}
    cmp \reg, {fds_max}
    jae 77f
    // See `Fds::byte`.
    mov ecx, \reg
    and ecx, 63
    shl ecx, 6
    xor ecx, \reg
    lea rdx, [rip + {fds}]
    test byte ptr [rdx + rcx], \mask
    jne 90f
77:
    .endm

    // To the dispatcher if the path may be the image's. dir: the register with its directory. The
    // kernel refuses pointers into the first page or its own half.
    .macro CHECK_PATH reg, dir
    lea rcx, [\reg - 4096]
    or rcx, \reg
    shr rcx, 47
    jnz 87f
    cmp byte ptr [\reg], 47
    jne 76f
    lea rdx, [rip + {prefix}]
    xor ecx, ecx
71: movzx eax, byte ptr [rdx + rcx]
    test al, al
    jz 90f
    cmp al, byte ptr [\reg + rcx + 1]
    jne 72f
    inc rcx
    jmp 71b
72: // The path differs from the mount's here. One not in normal form needs the dispatcher.
    movzx eax, byte ptr [\reg + rcx + 1]
    cmp al, 46
    je 90f
    cmp al, 47
    je 90f
    // Calls in a directory above the mount are observed.
    test al, al
    jz 90f
    // Tables of mounts, which the mount is added to: paths of /p.. with "mou", and /etc/mt..
    cmp byte ptr [\reg + 1], 112
    je 88f
    cmp byte ptr [\reg + 1], 101
    jne 89f
    cmp byte ptr [\reg + 2], 116
    jne 89f
    cmp byte ptr [\reg + 3], 99
    jne 89f
    cmp byte ptr [\reg + 4], 47
    jne 89f
    cmp byte ptr [\reg + 5], 109
    jne 89f
    cmp byte ptr [\reg + 6], 116
    je 90f
    jmp 89f
88: mov ecx, 1
86: inc rcx
    movzx eax, byte ptr [\reg + rcx]
    test al, al
    jz 89f
    cmp al, 47
    je 83f
    cmp al, 109
    jne 86b
    cmp byte ptr [\reg + rcx + 1], 111
    jne 86b
    cmp byte ptr [\reg + rcx + 2], 117
    jne 86b
    jmp 90f
83: // Descriptors, of any process: "/fd". Working directories: "/cw".
    cmp byte ptr [\reg + rcx + 1], 99
    je 85f
    cmp byte ptr [\reg + rcx + 1], 102
    jne 86b
    cmp byte ptr [\reg + rcx + 2], 100
    jne 86b
    jmp 90f
85: cmp byte ptr [\reg + rcx + 2], 119
    jne 86b
    jmp 90f
89: // /proc and /dev name descriptors, and the working directory. In the loader also the program's file.
    PROC 73f
    cmp dword ptr [rip + {fd_count}], 0
    jne 73f
    cmp byte ptr [rip + {cwd}], 0
    je 79f
73: cmp byte ptr [\reg + 1], 112
    jne 74f
    cmp byte ptr [\reg + 2], 114
    je 90f
74: cmp byte ptr [\reg + 1], 100
    jne 79f
    cmp byte ptr [\reg + 2], 101
    je 90f
    jmp 79f
75: // Upwards from a directory of the host: possibly into the mount.
    cmp byte ptr [\reg], 46
    jne 79f
    cmp byte ptr [\reg + 1], 46
    je 90f
    jmp 79f
87: // No path at all. With a directory the call may concern the descriptor.
    .ifc \dir,cwd
    cmp byte ptr [rip + {cwd}], 0
    jne 90f
    .else
    cmp \dir, -100
    jne 78f
    .endif
    jmp 79f
76: // Relative: the directory decides.
    .ifc \dir,cwd
    cmp byte ptr [rip + {cwd}], 0
    jne 90f
    jmp 75b
    .else
    cmp \dir, -100
    jne 78f
    cmp byte ptr [rip + {cwd}], 0
    jne 90f
    jmp 75b
78: CHECK_FD \dir
    .endif
79:
    .endm

    .section .text.directfs_entry,"ax",@progbits
    .p2align 6
    .globl directfs_entry
    .hidden directfs_entry
    .type directfs_entry, @function
directfs_entry:
    .cfi_startproc
    .cfi_def_cfa rsp, 0
    .cfi_escape 0x16, 16, 2, 0x7b, 2
    lea rsp, [rsp - 128]
    .cfi_adjust_cfa_offset 128
    mov rcx, rax
    push rax
    .cfi_adjust_cfa_offset 8
    lahf
    seto al
    push rax
    .cfi_adjust_cfa_offset 8
    push rdx
    .cfi_adjust_cfa_offset 8
    mov ecx, ecx
    cmp ecx, {numbers}
    jae 95f
    lea rdx, [rip + {routes}]
    movzx ecx, byte ptr [rdx + rcx]
    cmp byte ptr [rip + {all}], 0
    jne 80f
    lea rdx, [rip + 70f]
    movsxd rcx, dword ptr [rdx + 4 * rcx]
    add rcx, rdx
    jmp rcx
80: test ecx, ecx
    jnz 90f
    jmp 95f
    .p2align 2
70: .long 95f - 70b, 14f - 70b, 2f - 70b, 3f - 70b, 4f - 70b, 5f - 70b, 6f - 70b, 7f - 70b, 8f - 70b, 9f - 70b, 12f - 70b, 13f - 70b, 90f - 70b, 15f - 70b, 25f - 70b, 26f - 70b, 27f - 70b, 28f - 70b, 29f - 70b, 30f - 70b, 31f - 70b
14: CHECK_FD edi
    jmp 95f
2:  CHECK_PATH rdi, cwd
    jmp 95f
3:  CHECK_PATH rsi, edi
    jmp 95f
4:  CHECK_FD r8d
    // New code may contain calls of its own: see library_syscalls.
    test byte ptr [rsp], {prot_exec}
    jnz 90f
    // A mapping at a fixed address may replace a mapping of the image.
    test r10b, {map_fixed}
    jnz 13f
    jmp 95f
5:  CHECK_FD edi
    CHECK_FD esi
    jmp 95f
6:  CHECK_PATH rdi, cwd
    CHECK_PATH rsi, cwd
    jmp 95f
7:  CHECK_PATH rsi, edi
    mov rdx, qword ptr [rsp]
    // The third argument's register is in use; rax serves to look up the directory from the stack.
    mov eax, edx
    cmp eax, -100
    je 61f
    CHECK_FD eax
61: CHECK_PATH r10, cwd
    jmp 95f
8:  CHECK_PATH rsi, cwd
    jmp 95f
9:  mov rax, rdi
    CHECK_FD esi
    mov rcx, qword ptr [rsp]
    lea rdx, [rcx - 4096]
    or rdx, rcx
    shr rdx, 47
    jnz 95f
    cmp byte ptr [rcx], 47
    je 90f
    cmp esi, -100
    jne 95f
    cmp byte ptr [rip + {cwd}], 0
    jne 90f
    jmp 95f
12: CHECK_FD edi
    mov rdx, qword ptr [rsp]
    mov eax, edx
    CHECK_FD eax
    jmp 95f
25: CHECK_FD edi, 255
    jmp 95f
26: CHECK_FD edi
    jmp 29f
27: CHECK_PATH rdi, cwd
    jmp 29f
28: CHECK_PATH rsi, edi
29: cmp dword ptr [rip + {parked}], 0
    jne 90f
    jmp 95f
13: cmp dword ptr [rip + {fd_count}], 0
    jne 90f
    cmp byte ptr [rip + {cwd}], 0
    jne 90f
    jmp 95f
30: CHECK_FD edi
    test r8, r8
    jne 90f
    jmp 95f
31: cmp dword ptr [rip + {fd_count}], 0
    jne 90f
    cmp byte ptr [rip + {cwd}], 0
    jne 90f
    lea rcx, [rsi - 4096]
    or rcx, rsi
    shr rcx, 47
    jnz 95f
    cmp qword ptr [rsi], 0
    jne 90f
    jmp 95f
15: // A signal set that blocks the signals of faults, or a thread that believes it blocks them.
    WORDS rcx
    OF_THREAD
    cmp qword ptr [rcx + {masked}], 0
    jne 90f
    lea rcx, [rsi - 4096]
    or rcx, rsi
    shr rcx, 47
    jnz 95f
    test dword ptr [rsi], {fault_signals}
    jne 90f
    .globl directfs_entry_native
    .hidden directfs_entry_native
directfs_entry_native:
95: // Host.
    .cfi_remember_state
    RESTORE
    .cfi_def_cfa_offset 0
    jmp r11
    .cfi_restore_state

90: // The dispatcher: the frame takes all registers that it may overwrite.
    pop rdx
    .cfi_adjust_cfa_offset -8
    push rdx
    push rdi
    push rsi
    push r10
    push r8
    push r9
    push r11
    push rbx
    push rbp
    .cfi_adjust_cfa_offset 72
    .cfi_offset rbx, -208
    .cfi_offset rbp, -216
    .cfi_escape 0x16, 16, 5, 0x77, 16, 0x06, 0x23, 2
    mov rbx, rsp
    .cfi_def_cfa rbx, 216
    .cfi_escape 0x16, 16, 5, 0x73, 16, 0x06, 0x23, 2
    cld
60: // To the thread's own stack, if it has one and is not on it already.
    WORDS rbp
    OF_THREAD
    mov rsi, qword ptr [rbp]
    OF_THREAD
    cmp qword ptr [rbp + {alternate}], 0
    jne 69f
62: OF_THREAD
    mov qword ptr [rbp], 0
    test rsi, rsi
    cmovnz rsp, rsi
    and rsp, -64
    sub rsp, {save_bytes} + 64
    mov qword ptr [rsp + {save_bytes}], rsi
    SAVE_VECTORS
    mov rdi, rbx
    call {dispatch}
    mov rdi, rax
    mov rsi, rdx
    LOAD_VECTORS
    mov rcx, qword ptr [rsp + {save_bytes}]
    mov rsp, rbx
    test rcx, rcx
    jz 65f
    btr rcx, 0
    OF_THREAD
    mov qword ptr [rbp], rcx
    jc 63f
65: OF_THREAD
    cmp qword ptr [rbp + {deferred}], 0
    jne 68f
66: cmp esi, 1
    ja 64f
    je 67f
    .globl directfs_entry_done
    .hidden directfs_entry_done
directfs_entry_done:
61: mov qword ptr [rbx + 80], rdi
    add qword ptr [rbx + 16], 2
67: pop rbp
    pop rbx
    .cfi_def_cfa rsp, 200
    .cfi_restore rbp
    .cfi_restore rbx
    pop r11
    pop r9
    pop r8
    pop r10
    pop rsi
    pop rdi
    .cfi_def_cfa rsp, 152
    .cfi_escape 0x16, 16, 2, 0x7b, 2
    RESTORE
    .cfi_def_cfa_offset 0
    jmp r11
64: THREAD
    cmp esi, {moved}
    jne 60b
    mov rbx, rdi
    mov rsp, rdi
    xor edi, edi
    jmp 61b
68: // Deliver the waiting signals now, on the program's stack.
    .cfi_def_cfa rbx, 216
    .cfi_offset rbx, -208
    .cfi_offset rbp, -216
    .cfi_escape 0x16, 16, 5, 0x73, 16, 0x06, 0x23, 2
    push rdi
    push rsi
    mov rax, rsp
    and rsp, -64
    sub rsp, {save_bytes} + 64
    mov qword ptr [rsp + {save_bytes}], rax
    SAVE_VECTORS
    call {deliver}
    LOAD_VECTORS
    mov rsp, qword ptr [rsp + {save_bytes}]
    pop rsi
    pop rdi
    jmp 66b
69:
    // Possibly a handler on the program's signal stack. After the switch away from it, the kernel
    // would start the next signal at its top, over the handler's own frame. So all signals stay
    // blocked until the dispatcher has disabled that stack, which requires being off it. The lowest
    // bit is for the dispatcher.
    test rsi, rsi
    jz 62b
    OF_THREAD
    cmp rbx, qword ptr [rbp + {alternate}]
    jb 62b
    OF_THREAD
    cmp rbx, qword ptr [rbp + {alternate_end}]
    jae 62b
    or rsi, {from_alternate}
    push rsi
    push -1
    mov eax, {rt_sigprocmask}
    mov edi, {sig_setmask}
    mov rsi, rsp
    WORDS_ADDRESS rdx
    lea rdx, [rdx + rbp + {held}]
    mov r10d, 8
    syscall
    pop rsi
    pop rsi
    jmp 62b
63: // Back on the signal stack, which is in use again.
    push rdi
    push rsi
    mov eax, {rt_sigprocmask}
    mov edi, {sig_setmask}
    WORDS_ADDRESS rsi
    lea rsi, [rsi + rbp + {held}]
    xor edx, edx
    mov r10d, 8
    syscall
    pop rsi
    pop rdi
    jmp 65b
    .cfi_endproc
    .size directfs_entry, . - directfs_entry
    .purgem WORDS
    .purgem OF_THREAD
    .purgem WORDS_ADDRESS
    .purgem THREAD
    .purgem PROC
    "#,
    slot_mask = const !(SLOT_BYTES as i64 - 1) as u8,
    slot_return = const SLOT_RETURN,
    slots_bytes = const SLOTS * SLOT_BYTES,
    #[cfg(feature = "loader")]
    slots = const SLOTS,
    #[cfg(feature = "loader")]
    back = sym crate::loading::site_slots::BACK,
    fds_max = const FDS_MAX,
    served = const crate::descriptors::marks::SERVED,
    numbers = const crate::routes::NUMBERS,
    save_bytes = const SAVE_BYTES,
    fds = sym DIRECTFS_FDS,
    fd_count = sym DIRECTFS_FD_COUNT,
    map_fixed = const libc::MAP_FIXED,
    prot_exec = const libc::PROT_EXEC,
    moved = const Next::Moved as u32,
    parked = sym DIRECTFS_PARKED,
    cwd = sym DIRECTFS_CWD,
    all = sym DIRECTFS_ALL,
    prefix = sym DIRECTFS_PREFIX,
    routes = sym TABLE,
    dispatch = sym crate::dispatch::directfs_dispatch,
    deliver = sym crate::signals::directfs_deliver,
    deferred = const crate::abi::thread_words::DEFERRED_OFFSET,
    masked = const crate::abi::thread_words::MASKED_OFFSET,
    alternate = const crate::abi::thread_words::ALTERNATE_OFFSET,
    alternate_end = const crate::abi::thread_words::ALTERNATE_END_OFFSET,
    held = const crate::abi::thread_words::HELD_OFFSET,
    from_alternate = const FROM_ALTERNATE,
    rt_sigprocmask = const libc::SYS_rt_sigprocmask,
    sig_setmask = const libc::SIG_SETMASK,
    fault_signals = const crate::signals::FAULTS,
);

#[cfg(test)]
mod tests;
