//! Turning owned steps into the bytes that the new process reads; the mirror of `step::Reader`.

use std::ffi::CString;

use crate::step::Step;

/// A step that owns its strings, as a plan holds it.
pub(crate) type OwnedStep = Step<CString, Vec<u8>>;

/// Appends a number as the reader expects it.
pub(crate) fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, value: &[u8]) {
    number(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Appends a string with its length and its NUL.
pub(crate) fn text(out: &mut Vec<u8>, value: &CString) {
    bytes(out, value.as_bytes_with_nul());
}

/// Landlock rules: a path and what is allowed beneath it, one after the other.
#[must_use]
pub(crate) fn rules(rules: &[(CString, u64)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (path, access) in rules {
        text(&mut out, path);
        number(&mut out, *access);
    }
    out
}

fn numbers(out: &mut Vec<u8>, values: &[u64]) {
    values.iter().for_each(|value| number(out, *value));
}

/// Appends one step.
pub(crate) fn step(out: &mut Vec<u8>, step: &OwnedStep) {
    match step {
        Step::Become { uid, gid, clear_groups } => {
            numbers(out, &[0, (*uid).into(), (*gid).into(), (*clear_groups).into()]);
        }
        Step::Hostname { name } => {
            number(out, 2);
            bytes(out, name);
        }
        Step::Loopback => number(out, 3),
        Step::Mount { source, target, kind, flags, data } => {
            number(out, 4);
            [source, target, kind].into_iter().for_each(|value| text(out, value));
            number(out, *flags);
            text(out, data);
        }
        Step::Directory { path, mode, uid, gid } => {
            number(out, 5);
            text(out, path);
            numbers(out, &[(*mode).into(), (*uid).into(), (*gid).into()]);
        }
        Step::Pivot { root } => {
            number(out, 6);
            text(out, root);
        }
        Step::Enter { path } => {
            number(out, 7);
            text(out, path);
        }
        Step::Limit { which, soft, hard } => numbers(out, &[8, (*which).into(), *soft, *hard]),
        Step::CloseFrom { first } => numbers(out, &[9, (*first).into()]),
        Step::NoNewPrivs => number(out, 10),
        Step::Landlock { files, scoped, size, rules } => {
            numbers(out, &[11, *files, *scoped, (*size).into()]);
            bytes(out, rules);
        }
        Step::DropBounding { last } => numbers(out, &[12, (*last).into()]),
        Step::DropCapabilities => number(out, 13),
        Step::Seccomp { program } => {
            number(out, 14);
            bytes(out, program);
        }
        Step::DieWithParent => number(out, 15),
        Step::Unshare { kinds } => numbers(out, &[16, *kinds]),
        Step::NoSpeculation { kind } => numbers(out, &[19, (*kind).into()]),
        Step::Write { path, content } => {
            number(out, 17);
            text(out, path);
            bytes(out, content);
        }
        Step::BuildIn { path } => {
            number(out, 18);
            text(out, path);
        }
        Step::WatchSockets { most } => numbers(out, &[40, (*most).into()]),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

    use super::*;
    use crate::step::{Reader, StepRef};

    fn borrowed(step: &OwnedStep) -> Vec<u8> {
        let mut out = Vec::new();
        super::step(&mut out, step);
        out
    }

    #[test]
    fn every_kind_of_step_reads_back_as_it_was_written() {
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
            Step::Landlock { files: 1, scoped: 2, size: 24, rules: rules(&[(path(), 5)]) },
            Step::DropBounding { last: 40 },
            Step::DropCapabilities,
            Step::Seccomp { program: vec![0; 8] },
            Step::DieWithParent,
            Step::Unshare { kinds: 0x0200_0000 },
            Step::NoSpeculation { kind: 1 },
            Step::Write { path: path(), content: b"16".to_vec() },
            Step::BuildIn { path: path() },
            Step::WatchSockets { most: 256 },
        ];
        for step in &steps {
            let bytes = borrowed(step);
            let mut reader = Reader::new(&bytes);
            let read = reader.step().unwrap();
            assert!(reader.is_empty(), "{step:?}");
            assert_eq!(format!("{read:?}"), format!("{step:?}"));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            let mut reader = Reader::new(&bytes);
            let mut read: Vec<StepRef<'_>> = Vec::new();
            while let Some(step) = reader.step() {
                read.push(step);
            }
            prop_assert!(read.len() <= bytes.len());
        }

        #[test]
        fn a_cut_program_is_refused(cut in 0_usize..20) {
            let whole = borrowed(&Step::Hostname { name: b"cloche".to_vec() });
            let cut = cut.min(whole.len() - 1);
            prop_assert_eq!(Reader::new(&whole[..cut]).step(), None);
        }
    }
}
