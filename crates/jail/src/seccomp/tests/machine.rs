//! Runs in: tests.
//!
//! A BPF interpreter for seccomp filters, as strict as the kernel's checker.

use crate::seccomp::bpf::{
    AND, BpfInstruction, JUMP, JUMP_ANY_BIT, JUMP_AT_LEAST, JUMP_EQUAL, LOAD, RETURN,
};

/// `struct seccomp_data`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) number: u32,
    pub(super) arch: u32,
    pub(super) args: [u64; 6],
}

/// The result of running a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ran {
    pub(super) value: u32,
    pub(super) comparisons: usize,
}

/// Runs the program; panics if the kernel would refuse it.
pub(super) fn run(program: &[BpfInstruction], call: &Call) -> Ran {
    let (mut at, mut accumulator, mut comparisons) = (0, 0, 0);
    loop {
        let step = program[at];
        at += 1;
        let holds = match step.code {
            LOAD => {
                accumulator = load(call, step.k);
                continue;
            }
            AND => {
                accumulator &= step.k;
                continue;
            }
            JUMP => {
                at += usize::try_from(step.k).unwrap();
                continue;
            }
            RETURN => return Ran { value: step.k, comparisons },
            JUMP_EQUAL => accumulator == step.k,
            JUMP_AT_LEAST => accumulator >= step.k,
            JUMP_ANY_BIT => accumulator & step.k != 0,
            other => panic!("no filter has instruction {other:#x}"),
        };
        comparisons += 1;
        at += usize::from(if holds { step.yes } else { step.no });
    }
}

fn load(call: &Call, at: u32) -> u32 {
    let mut data = Vec::with_capacity(64);
    data.extend(call.number.to_le_bytes());
    data.extend(call.arch.to_le_bytes());
    data.extend(0_u64.to_le_bytes());
    data.extend(call.args.iter().flat_map(|arg| arg.to_le_bytes()));
    let at = usize::try_from(at).unwrap();
    assert_eq!(at % 4, 0, "the kernel refuses unaligned loads");
    u32::from_le_bytes(data[at..at + 4].try_into().unwrap())
}
