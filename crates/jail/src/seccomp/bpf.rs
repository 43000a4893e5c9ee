//! Runs in: the build and tests.
//!
//! Compiles a table of rules to a classic BPF program.
//!
//! The program is written from its end to its start. Every jump goes forward, so its target is
//! already placed and its distance known. A jump that is too far for eight bits goes through an
//! unconditional one. It must not know the policy file.

use std::collections::HashMap;

use super::{
    policy::{ArgCondition, ArgWidth, PolicyError, SyscallVerdict},
    table::{Arch, CallRule, RuleTable},
};

/// The longest program that the kernel accepts (`BPF_MAXINSNS`).
const LONGEST: usize = 4096;
/// Set in the number of every x32 call.
const X32_BIT: u32 = 0x4000_0000;

/// `BPF_LD | BPF_W | BPF_ABS`
pub(crate) const LOAD: u16 = 0x20;
/// `BPF_ALU | BPF_AND | BPF_K`
pub(crate) const AND: u16 = 0x54;
/// `BPF_JMP | BPF_JA`
pub(crate) const JUMP: u16 = 0x05;
/// `BPF_JMP | BPF_JEQ | BPF_K`
pub(crate) const JUMP_EQUAL: u16 = 0x15;
/// `BPF_JMP | BPF_JGE | BPF_K`
pub(crate) const JUMP_AT_LEAST: u16 = 0x35;
/// `BPF_JMP | BPF_JSET | BPF_K`
pub(crate) const JUMP_ANY_BIT: u16 = 0x45;
/// `BPF_RET | BPF_K`
pub(crate) const RETURN: u16 = 0x06;

/// The offsets of the call's number and of the architecture in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCH_AT: u32 = 4;

/// One `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BpfInstruction {
    pub(crate) code: u16,
    pub(crate) yes: u8,
    pub(crate) no: u8,
    pub(crate) k: u32,
}

/// The position of an instruction, counted from the end of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BpfLabel(usize);

/// The program, last instruction first.
#[derive(Default)]
struct BpfWriter {
    reversed: Vec<BpfInstruction>,
    verdicts: HashMap<SyscallVerdict, BpfLabel>,
}

/// Compiles the table: architecture, x32 bit, then a balanced search for the number.
pub(crate) fn compile_filter(table: &RuleTable) -> Result<Vec<BpfInstruction>, PolicyError> {
    let mut writer = BpfWriter::default();
    let segments = split_segments(table);
    let mut entry = writer.push_search(&segments);
    if table.arch == Arch::X86_64 {
        let x32 = writer.push_verdict(table.x32);
        entry = writer.push_branch(JUMP_ANY_BIT, X32_BIT, x32, entry);
    }
    entry = writer.push_then(LOAD, NUMBER_AT, entry);
    let kill = writer.push_verdict(SyscallVerdict::Kill);
    let entry = writer.push_branch(JUMP_EQUAL, table.arch.audit_arch(), entry, kill);
    writer.push_then(LOAD, ARCH_AT, entry);
    if writer.reversed.len() > LONGEST {
        return Err(PolicyError::TooLong(writer.reversed.len()));
    }
    writer.reversed.reverse();
    Ok(writer.reversed)
}

/// The program as the kernel reads it, in the byte order of both supported architectures.
pub(crate) fn program_bytes(program: &[BpfInstruction]) -> Vec<u8> {
    let encode = |step: &BpfInstruction| {
        let ([c0, c1], [k0, k1, k2, k3]) = (step.code.to_le_bytes(), step.k.to_le_bytes());
        [c0, c1, step.yes, step.no, k0, k1, k2, k3]
    };
    program.iter().flat_map(encode).collect()
}

/// The `SECCOMP_RET_*` value of a verdict.
pub(crate) fn return_value(verdict: SyscallVerdict) -> u32 {
    const ERRNO: u32 = 0x0005_0000;
    match verdict {
        SyscallVerdict::Allow => 0x7fff_0000,
        SyscallVerdict::Ignore => ERRNO,
        SyscallVerdict::NotPermitted => ERRNO | 1,
        SyscallVerdict::Invalid => ERRNO | 22,
        SyscallVerdict::NotImplemented => ERRNO | 38,
        SyscallVerdict::NoSuchProtocol => ERRNO | 93,
        SyscallVerdict::NoSuchFamily => ERRNO | 97,
        SyscallVerdict::Kill => 0x8000_0000,
    }
}

/// All call numbers as segments with one rule each: the first number, and the rule.
fn split_segments(table: &RuleTable) -> Vec<(u32, CallRule)> {
    let default = CallRule::Always(table.default);
    let mut cuts: Vec<(u32, CallRule)> = vec![(0, default.clone())];
    for (&number, rule) in &table.rules {
        match cuts.last_mut() {
            Some(last) if last.0 == number => last.1 = rule.clone(),
            _ => cuts.push((number, rule.clone())),
        }
        cuts.push((number + 1, default.clone()));
    }
    cuts.dedup_by(|next, previous| next.1 == previous.1);
    cuts
}

impl BpfWriter {
    fn push(&mut self, code: u16, yes: u8, no: u8, k: u32) -> BpfLabel {
        self.reversed.push(BpfInstruction { code, yes, no, k });
        BpfLabel(self.reversed.len() - 1)
    }

    /// How many instructions the next one would have to jump over to reach `to`.
    fn distance_to(&self, to: BpfLabel) -> usize {
        self.reversed.len() - to.0 - 1
    }

    /// `code k`, then continue at `next`.
    fn push_then(&mut self, code: u16, k: u32, next: BpfLabel) -> BpfLabel {
        if self.distance_to(next) > 0 {
            self.push_jump(next);
        }
        self.push(code, 0, 0, k)
    }

    /// An unconditional jump. If the target is a verdict, the verdict is repeated instead: the same
    /// size, and one jump less.
    fn push_jump(&mut self, target: BpfLabel) -> BpfLabel {
        let instruction = self.reversed[target.0];
        if instruction.code == RETURN {
            return self.push(RETURN, 0, 0, instruction.k);
        }
        let far = u32::try_from(self.distance_to(target)).unwrap_or(u32::MAX);
        self.push(JUMP, 0, 0, far)
    }

    /// The distance, if a conditional jump can encode it.
    fn short_distance_to(&self, target: BpfLabel) -> Option<u8> {
        u8::try_from(self.distance_to(target)).ok()
    }

    /// `if A op k { yes } else { no }`
    fn push_branch(&mut self, code: u16, k: u32, mut yes: BpfLabel, mut no: BpfLabel) -> BpfLabel {
        loop {
            match (self.short_distance_to(yes), self.short_distance_to(no)) {
                (Some(yes), Some(no)) => return self.push(code, yes, no, k),
                (None, _) => yes = self.push_jump(yes),
                (_, None) => no = self.push_jump(no),
            }
        }
    }

    fn push_verdict(&mut self, verdict: SyscallVerdict) -> BpfLabel {
        match self.verdicts.get(&verdict) {
            Some(&label) if self.short_distance_to(label).is_some() => label,
            _ => {
                let label = self.push(RETURN, 0, 0, return_value(verdict));
                self.verdicts.insert(verdict, label);
                label
            }
        }
    }

    fn push_search(&mut self, segments: &[(u32, CallRule)]) -> BpfLabel {
        match segments {
            [] => self.push_verdict(SyscallVerdict::Kill),
            [(_, rule)] => self.push_rule(rule),
            _ => {
                let (low, high) = segments.split_at(segments.len() / 2);
                let (high_label, low_label) = (self.push_search(high), self.push_search(low));
                self.push_branch(JUMP_AT_LEAST, high[0].0, high_label, low_label)
            }
        }
    }

    fn push_rule(&mut self, rule: &CallRule) -> BpfLabel {
        match rule {
            CallRule::Always(verdict) => self.push_verdict(*verdict),
            CallRule::Checked { clauses, otherwise } => {
                let mut next = self.push_verdict(*otherwise);
                for clause in clauses.iter().rev() {
                    let mut holds = self.push_verdict(clause.then);
                    for condition in clause.when.iter().rev() {
                        holds = self.push_condition(condition, holds, next);
                    }
                    next = holds;
                }
                next
            }
        }
    }

    fn push_condition(
        &mut self,
        condition: &ArgCondition,
        yes: BpfLabel,
        no: BpfLabel,
    ) -> BpfLabel {
        let low_at = 16 + 8 * u32::from(condition.arg);
        let halves = |word: u64| (low_half(word), low_half(word >> 32));
        if !condition.any_bit.is_empty() {
            let (low, high) = halves(condition.any_bit.values().fold(0, |all, bit| all | bit.0));
            let mut next = no;
            for (mask, at) in [(high, low_at + 4), (low, low_at)] {
                if mask != 0 {
                    next = self.push_branch(JUMP_ANY_BIT, mask, yes, next);
                    next = self.push_then(LOAD, at, next);
                }
            }
            return next;
        }
        let (low_mask, high_mask) = halves(condition.effective_mask().0);
        let values = condition.one_of.values().rev().map(|value| halves(value.0));
        if condition.bits == ArgWidth::Low32 {
            let test =
                values.fold(no, |next, (low, _)| self.push_branch(JUMP_EQUAL, low, yes, next));
            return self.push_load(low_at, low_mask, test);
        }
        values.fold(no, |next, (low, high)| {
            let test = self.push_branch(JUMP_EQUAL, high, yes, next);
            let test = self.push_load(low_at + 4, high_mask, test);
            let test = self.push_branch(JUMP_EQUAL, low, test, next);
            self.push_load(low_at, low_mask, test)
        })
    }

    fn push_load(&mut self, at: u32, mask: u32, next: BpfLabel) -> BpfLabel {
        let next = if mask == u32::MAX { next } else { self.push_then(AND, mask, next) };
        self.push_then(LOAD, at, next)
    }
}

fn low_half(word: u64) -> u32 {
    let [b0, b1, b2, b3, ..] = word.to_le_bytes();
    u32::from_le_bytes([b0, b1, b2, b3])
}
