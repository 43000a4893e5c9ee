//! Runs in: spawner (root), server (no capabilities).
//!
//! Encodes owned steps as the bytes that a new process reads with `step::ProgramReader`.

use std::ffi::CString;

use super::step::Step;

/// A step that owns its strings, as in a plan.
pub(crate) type OwnedStep = Step<CString, Vec<u8>>;

/// Appends a number.
pub(crate) fn append_number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn append_bytes(out: &mut Vec<u8>, value: &[u8]) {
    append_number(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Appends a string with its length and its NUL.
pub(crate) fn append_text(out: &mut Vec<u8>, value: &CString) {
    append_bytes(out, value.as_bytes_with_nul());
}

/// Encodes Landlock rules, each a path and the accesses that are allowed beneath it.
#[must_use]
pub(crate) fn encode_rules(rules: &[(CString, u64)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (path, access) in rules {
        append_text(&mut out, path);
        append_number(&mut out, *access);
    }
    out
}

fn append_numbers(out: &mut Vec<u8>, values: &[u64]) {
    values.iter().for_each(|value| append_number(out, *value));
}

/// Appends one step.
pub(crate) fn append_step(out: &mut Vec<u8>, step: &OwnedStep) {
    match step {
        Step::Become { uid, gid, clear_groups } => {
            append_numbers(out, &[0, (*uid).into(), (*gid).into(), (*clear_groups).into()]);
        }
        Step::Hostname { name } => {
            append_number(out, 2);
            append_bytes(out, name);
        }
        Step::Loopback => append_number(out, 3),
        Step::Mount { source, target, kind, flags, data } => {
            append_number(out, 4);
            [source, target, kind].into_iter().for_each(|value| append_text(out, value));
            append_number(out, *flags);
            append_text(out, data);
        }
        Step::Directory { path, mode, uid, gid } => {
            append_number(out, 5);
            append_text(out, path);
            append_numbers(out, &[(*mode).into(), (*uid).into(), (*gid).into()]);
        }
        Step::Pivot { root } => {
            append_number(out, 6);
            append_text(out, root);
        }
        Step::Enter { path } => {
            append_number(out, 7);
            append_text(out, path);
        }
        Step::Limit { which, soft, hard } => {
            append_numbers(out, &[8, (*which).into(), *soft, *hard])
        }
        Step::CloseFrom { first } => append_numbers(out, &[9, (*first).into()]),
        Step::NoNewPrivs => append_number(out, 10),
        Step::Landlock { files, scoped, size, rules } => {
            append_numbers(out, &[11, *files, *scoped, (*size).into()]);
            append_bytes(out, rules);
        }
        Step::DropBounding { last } => append_numbers(out, &[12, (*last).into()]),
        Step::DropCapabilities => append_number(out, 13),
        Step::Seccomp { program } => {
            append_number(out, 14);
            append_bytes(out, program);
        }
        Step::DieWithParent => append_number(out, 15),
        Step::Unshare { kinds } => append_numbers(out, &[16, *kinds]),
        Step::NoSpeculation { kind } => append_numbers(out, &[19, (*kind).into()]),
        Step::Write { path, content } => {
            append_number(out, 17);
            append_text(out, path);
            append_bytes(out, content);
        }
        Step::BuildIn { path } => {
            append_number(out, 18);
            append_text(out, path);
        }
        Step::ContainSignals => append_number(out, 20),
        Step::WatchSockets { most } => append_numbers(out, &[40, (*most).into()]),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

    use super::*;
    use crate::{
        protocol::step::{ProgramReader, StepRef},
        sys::CLONE_NEWCGROUP,
    };

    fn borrowed(step: &OwnedStep) -> Vec<u8> {
        let mut out = Vec::new();
        append_step(&mut out, step);
        out
    }

    #[test]
    fn every_kind_of_step_decodes_to_the_encoded_step() {
        let path = || CString::from(c"/a/b");
        let steps: Vec<OwnedStep> = vec![
            Step::Become { uid: 1, gid: 2, clear_groups: true },
            Step::Hostname { name: b"cloche".to_vec() },
            Step::Loopback,
            Step::Mount { source: path(), target: path(), kind: path(), flags: 9, data: path() },
            Step::Directory { path: path(), mode: 0o755, uid: 3, gid: 4 },
            Step::Pivot { root: path() },
            Step::Enter { path: path() },
            Step::Limit { which: 4, soft: 1, hard: u64::MAX },
            Step::CloseFrom { first: 5 },
            Step::NoNewPrivs,
            Step::Landlock { files: 1, scoped: 2, size: 24, rules: encode_rules(&[(path(), 5)]) },
            Step::DropBounding { last: 40 },
            Step::DropCapabilities,
            Step::Seccomp { program: vec![0; 8] },
            Step::DieWithParent,
            Step::Unshare { kinds: CLONE_NEWCGROUP },
            Step::NoSpeculation { kind: 1 },
            Step::Write { path: path(), content: b"16".to_vec() },
            Step::BuildIn { path: path() },
            Step::ContainSignals,
            Step::WatchSockets { most: 256 },
        ];
        for step in &steps {
            let bytes = borrowed(step);
            let mut reader = ProgramReader::new(&bytes);
            let read = reader.read_step().unwrap();
            assert!(reader.is_empty(), "{step:?}");
            assert_eq!(format!("{read:?}"), format!("{step:?}"));
        }
    }

    proptest! {
        #[test]
        fn the_step_reader_does_not_panic_on_any_bytes(
            bytes in prop::collection::vec(any::<u8>(), 0..256)
        ) {
            let mut reader = ProgramReader::new(&bytes);
            let mut read: Vec<StepRef<'_>> = Vec::new();
            while let Some(step) = reader.read_step() {
                read.push(step);
            }
            prop_assert!(read.len() <= bytes.len());
        }

        #[test]
        fn a_truncated_step_is_refused(cut in 0_usize..20) {
            let whole = borrowed(&Step::Hostname { name: b"cloche".to_vec() });
            let cut = cut.min(whole.len() - 1);
            prop_assert_eq!(ProgramReader::new(&whole[..cut]).read_step(), None);
        }
    }
}
