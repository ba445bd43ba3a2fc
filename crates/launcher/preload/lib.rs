//! The library that programs get: crate `hook`, a constructor, and the functions that a library
//! without std must provide itself.
//!
//! Invariant: nothing is exported except `la_version`, by which the loader recognises an audit
//! module. Any other exported symbol would replace a symbol of the program.
#![no_std]

use core::arch::global_asm;
use core::panic::PanicInfo;

// The kernel starts here, with the program's arguments at the stack pointer. Relocates this
// program, loads the other one, and jumps there with registers as the kernel leaves them.
#[cfg(feature = "loader")]
global_asm!(
    r#"
    .section .text.directfs_memory,"ax",@progbits
    .globl directfs_loader
    .type directfs_loader, @function
    .hidden _DYNAMIC
    .hidden __ehdr_start
directfs_loader:
    mov rdi, rsp
    and rsp, -16
    lea rsi, [rip + __ehdr_start]
    lea rdx, [rip + _DYNAMIC]
    xor r8d, r8d
    xor r9d, r9d
1:  mov rax, qword ptr [rdx]
    mov rcx, qword ptr [rdx + 8]
    add rdx, 16
    cmp rax, {dt_rela}
    cmove r8, rcx
    cmp rax, {dt_relasz}
    cmove r9, rcx
    test rax, rax
    jnz 1b
    add r8, rsi
    add r9, r8
2:  cmp r8, r9
    jae 4f
    cmp dword ptr [r8 + 8], {relative}
    jne 3f
    mov rax, qword ptr [r8]
    mov rcx, qword ptr [r8 + 16]
    add rcx, rsi
    mov qword ptr [rsi + rax], rcx
    add r8, 24
    jmp 2b
3:  ud2
4:  mov rbx, rdi
    call {load}
    mov rsp, rbx
    xor ecx, ecx
    xor edx, edx
    xor ebx, ebx
    xor ebp, ebp
    xor esi, esi
    xor edi, edi
    xor r8d, r8d
    xor r9d, r9d
    xor r10d, r10d
    xor r11d, r11d
    xor r12d, r12d
    xor r13d, r13d
    xor r14d, r14d
    xor r15d, r15d
    jmp rax
    .size directfs_loader, . - directfs_loader
    "#,
    load = sym load,
    dt_rela = const 7,
    dt_relasz = const 8,
    relative = const 8,
);

/// Loads the other program; returns its first instruction.
#[cfg(feature = "loader")]
extern "C" fn load(stack: *mut u64) -> u64 {
    // SAFETY: called once, first, with the stack pointer at the start.
    unsafe { hook::loading::program_loader::load(stack, memory_code()) }
}

/// The loader calls it before all other constructors (the library is linked with `initfirst`).
#[cfg(not(feature = "loader"))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(i32, *const *const u8, *const *const u8) = start;

#[cfg(not(feature = "loader"))]
extern "C" fn start(_: i32, _: *const *const u8, environment: *const *const u8) {
    // SAFETY: glibc calls constructors with the program's arguments and environment, once, and this
    // one first.
    unsafe { hook::loading::start::start(environment, memory_code()) }
}

unsafe extern "C" {
    fn directfs_memory();
    fn directfs_memory_end();
}

/// The functions below: leaves without a frame, which can return from any instruction.
fn memory_code() -> core::ops::Range<usize> {
    directfs_memory as *const () as usize..directfs_memory_end as *const () as usize
}

/// For audit modules (`hook::loading::early`): the constructor has run by then, and nothing else is
/// needed. Any version of the loader's interface is accepted.
#[unsafe(no_mangle)]
pub extern "C" fn la_version(version: u32) -> u32 {
    version
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    hook::abi::sys::refuse(&[b"the library inside this program has failed; please report it"])
}

// Functions that compiled code calls, mostly for names and small structures: the processor's string
// instructions would cost more than the rest there. Long runs use those instructions. Of the vector
// registers they use the lower halves of the first two.
global_asm!(
    r#"
    .section .text.directfs_memory,"ax",@progbits
    .macro FUNCTION name
    .globl \name
    .hidden \name
    .type \name, @function
    .p2align 4
\name:
    .endm

    .globl directfs_memory
    .hidden directfs_memory
directfs_memory:
    FUNCTION memmove
    mov rax, rdi
    sub rax, rsi
    cmp rax, rdx
    jae memcpy
    // The target begins inside the source: copy from the end, unless all of it fits into registers.
    cmp rdx, 32
    jbe memcpy
    mov rax, rdi
    movdqu xmm1, xmmword ptr [rsi]
1:  movdqu xmm0, xmmword ptr [rsi + rdx - 16]
    movdqu xmmword ptr [rdi + rdx - 16], xmm0
    sub rdx, 16
    cmp rdx, 16
    ja 1b
    movdqu xmmword ptr [rdi], xmm1
    ret

    // Also correct where the target begins before the source: every piece is read before lower
    // addresses are written, and the last piece first of all.
    FUNCTION memcpy
    mov rax, rdi
    cmp rdx, 16
    jb 3f
    movdqu xmm1, xmmword ptr [rsi + rdx - 16]
    cmp rdx, 32
    jbe 4f
    cmp rdx, 768
    ja 5f
    lea r8, [rdi + rdx - 16]
2:  movdqu xmm0, xmmword ptr [rsi]
    movdqu xmmword ptr [rdi], xmm0
    add rsi, 16
    add rdi, 16
    cmp rdi, r8
    jb 2b
    movdqu xmmword ptr [r8], xmm1
    ret
4:  movdqu xmm0, xmmword ptr [rsi]
    movdqu xmmword ptr [rdi + rdx - 16], xmm1
    movdqu xmmword ptr [rdi], xmm0
    ret
5:  mov rcx, rdx
    rep movsb
    ret
3:  cmp edx, 8
    jb 6f
    mov r8, qword ptr [rsi]
    mov r9, qword ptr [rsi + rdx - 8]
    mov qword ptr [rdi], r8
    mov qword ptr [rdi + rdx - 8], r9
    ret
6:  cmp edx, 4
    jb 7f
    mov r8d, dword ptr [rsi]
    mov r9d, dword ptr [rsi + rdx - 4]
    mov dword ptr [rdi], r8d
    mov dword ptr [rdi + rdx - 4], r9d
    ret
7:  test edx, edx
    jz 8f
    movzx r8d, byte ptr [rsi]
    movzx r9d, byte ptr [rsi + rdx - 1]
    mov ecx, edx
    shr ecx, 1
    movzx r10d, byte ptr [rsi + rcx]
    mov byte ptr [rdi + rcx], r10b
    mov byte ptr [rdi], r8b
    mov byte ptr [rdi + rdx - 1], r9b
8:  ret

    FUNCTION memset
    mov rax, rdi
    movzx esi, sil
    mov rcx, 0x0101010101010101
    imul rsi, rcx
    cmp rdx, 16
    jb 3f
    cmp rdx, 768
    ja 5f
    movq xmm0, rsi
    punpcklqdq xmm0, xmm0
    lea r8, [rdi + rdx - 16]
    jmp 4f
2:  movdqu xmmword ptr [rdi], xmm0
    add rdi, 16
4:  cmp rdi, r8
    jb 2b
    movdqu xmmword ptr [r8], xmm0
    ret
5:  mov r8, rax
    mov rax, rsi
    mov rcx, rdx
    rep stosb
    mov rax, r8
    ret
3:  cmp edx, 8
    jb 6f
    mov qword ptr [rdi], rsi
    mov qword ptr [rdi + rdx - 8], rsi
    ret
6:  test edx, edx
    jz 8f
7:  mov byte ptr [rdi + rdx - 1], sil
    dec edx
    jnz 7b
8:  ret

    FUNCTION memcmp
    FUNCTION bcmp
    xor ecx, ecx
    cmp rdx, 8
    jb 3f
    sub rdx, 8
2:  mov r8, qword ptr [rdi + rcx]
    mov r9, qword ptr [rsi + rcx]
    cmp r8, r9
    jne 4f
    add rcx, 8
    cmp rcx, rdx
    jbe 2b
    // The last eight bytes, some of them twice.
    mov r8, qword ptr [rdi + rdx]
    mov r9, qword ptr [rsi + rdx]
    xor eax, eax
    cmp r8, r9
    jne 4f
    ret
4:  bswap r8
    bswap r9
    xor eax, eax
    cmp r8, r9
    sbb eax, eax
    or eax, 1
    ret
3:  xor eax, eax
    cmp rcx, rdx
    je 6f
5:  movzx eax, byte ptr [rdi + rcx]
    movzx r8d, byte ptr [rsi + rcx]
    sub eax, r8d
    jnz 6f
    inc rcx
    cmp rcx, rdx
    jb 5b
6:  ret

    // By aligned pieces, none of which reaches into another page.
    FUNCTION strlen
    pxor xmm0, xmm0
    mov rdx, rdi
    and rdx, -16
    mov ecx, edi
    and ecx, 15
    movdqa xmm1, xmmword ptr [rdx]
    pcmpeqb xmm1, xmm0
    pmovmskb eax, xmm1
    shr eax, cl
    test eax, eax
    jnz 6f
5:  add rdx, 16
    movdqa xmm1, xmmword ptr [rdx]
    pcmpeqb xmm1, xmm0
    pmovmskb eax, xmm1
    test eax, eax
    jz 5b
    bsf eax, eax
    sub rdx, rdi
    add rax, rdx
    ret
6:  bsf eax, eax
    ret
    .globl directfs_memory_end
    .hidden directfs_memory_end
directfs_memory_end:
    "#
);
