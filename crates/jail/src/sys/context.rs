//! Runs in: template, guest of a forked cell.
//!
//! A saved context: the template saves its own stack position, and a copy of the template that runs
//! on another stack resumes there. Core only.

/// A position on this process's own stack at which a copy of the process can resume.
#[derive(Clone, Copy)]
pub struct SavedContext(*const usize);

// SAFETY: both are defined below, in assembly, for these arguments.
unsafe extern "C" {
    fn cloche_call(stack: *mut usize, run: extern "C" fn(*mut u8), with: *mut u8);
    fn cloche_return(stack: usize) -> !;
}

impl SavedContext {
    /// Saves the context and calls `run` with it. Returns when `run` returns, and in every copy of
    /// this process that resumes the context.
    pub fn save_and_call<T>(argument: &mut T, run: fn(&mut T, Self)) {
        struct ContextCall<'a, T>(&'a mut T, fn(&mut T, SavedContext), *const usize);
        extern "C" fn run_context_call<T>(call: *mut u8) {
            // SAFETY: it is the `ContextCall` below, which outlives this function.
            let ContextCall(argument, run, stack) =
                unsafe { &mut *call.cast::<ContextCall<'_, T>>() };
            run(argument, SavedContext(*stack));
        }
        let mut stack = 0;
        let stack_at = &raw mut stack;
        let mut call = ContextCall(argument, run, stack_at);
        // SAFETY: `cloche_call` is an ordinary function that preserves the callee-saved registers.
        // `stack` and all above it on this stack stay as they are until it returns.
        unsafe { cloche_call(stack_at, run_context_call::<T>, (&raw mut call).cast()) };
    }

    /// Resumes the context. Only in a copy of the process that saved it.
    pub fn resume(self) -> ! {
        // SAFETY: the copy has its own copy of the stack, on which `cloche_call` has saved the
        // registers, and that frame was never returned from: the process that saved it stays in
        // `run` until its end.
        unsafe { cloche_return(*self.0) }
    }
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".globl cloche_call, cloche_return",
    ".hidden cloche_call, cloche_return",
    "cloche_call: push rbp; push rbx; push r12; push r13; push r14; push r15",
    "mov [rdi], rsp; mov rdi, rdx; sub rsp, 8; call rsi; add rsp, 8",
    "2: pop r15; pop r14; pop r13; pop r12; pop rbx; pop rbp; ret",
    "cloche_return: mov rsp, rdi; jmp 2b",
);
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".globl cloche_call, cloche_return",
    ".hidden cloche_call, cloche_return",
    "cloche_call: stp x29, x30, [sp, #-160]!; stp x19, x20, [sp, #16]; stp x21, x22, [sp, #32]",
    "stp x23, x24, [sp, #48]; stp x25, x26, [sp, #64]; stp x27, x28, [sp, #80]",
    "stp d8, d9, [sp, #96]; stp d10, d11, [sp, #112]; stp d12, d13, [sp, #128]",
    "stp d14, d15, [sp, #144]; mov x9, sp; str x9, [x0]; mov x0, x2; blr x1",
    "2: ldp x19, x20, [sp, #16]; ldp x21, x22, [sp, #32]; ldp x23, x24, [sp, #48]",
    "ldp x25, x26, [sp, #64]; ldp x27, x28, [sp, #80]; ldp d8, d9, [sp, #96]",
    "ldp d10, d11, [sp, #112]; ldp d12, d13, [sp, #128]; ldp d14, d15, [sp, #144]",
    "ldp x29, x30, [sp], #160; ret",
    "cloche_return: mov sp, x0; b 2b",
);
