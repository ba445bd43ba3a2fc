//! The library that programs get: `intercept` without its launcher, a constructor, and what a library without std must bring itself.
//!
//! Invariant: nothing is exported. A symbol of ours that a program could see would replace its own.
#![no_std]

use core::arch::global_asm;
use core::panic::PanicInfo;
use intercept::hook;

/// The loader calls it before all other constructors (the library is linked with `initfirst`).
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(i32, *const *const u8, *const *const u8) = start;

extern "C" fn start(_: i32, _: *const *const u8, environment: *const *const u8) {
    // SAFETY: glibc calls constructors with the program's arguments and environment, once, and this one first.
    unsafe { hook::start::start(environment) }
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    hook::sys::refuse(&[b"the library inside this program has failed; please report it"])
}

// What compiled code calls. The processor's own string instructions are fast enough for what is copied here, and use no vector register.
global_asm!(
    r#"
    .text
    .macro FUNCTION name
    .globl \name
    .hidden \name
    .type \name, @function
    .p2align 4
\name:
    .endm

    FUNCTION memcpy
    mov rax, rdi
    mov rcx, rdx
    rep movsb
    ret

    FUNCTION memmove
    mov rax, rdi
    mov rcx, rdx
    mov r8, rdi
    sub r8, rsi
    cmp r8, rdx
    jb 2f
    rep movsb
    ret
2:  lea rsi, [rsi + rdx - 1]
    lea rdi, [rdi + rdx - 1]
    std
    rep movsb
    cld
    ret

    FUNCTION memset
    mov r8, rdi
    mov eax, esi
    mov rcx, rdx
    rep stosb
    mov rax, r8
    ret

    FUNCTION memcmp
    FUNCTION bcmp
    xor eax, eax
    xor ecx, ecx
3:  cmp rcx, rdx
    je 4f
    movzx eax, byte ptr [rdi + rcx]
    movzx r8d, byte ptr [rsi + rcx]
    inc rcx
    sub eax, r8d
    jz 3b
4:  ret

    FUNCTION strlen
    xor eax, eax
5:  cmp byte ptr [rdi + rax], 0
    je 6f
    inc rax
    jmp 5b
6:  ret
    "#
);
