//! Random work in a home over many runs, on real overlays. Each run finds exactly what the previous
//! one left, with restarts, evictions and squashes in between.

use std::{
    ffi::OsStr,
    fs::{self, File, Permissions},
    io::Write,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
};

use cloche_layers::{LayerBounds, Tree};
use cloche_model::ByteSize;
use proptest::{collection::vec, prelude::*};
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use crate::{
    snapshot::{Snapshot, assert_same, of_tree, snapshot, without_content},
    stack::Overlay,
    support::{LayersFixture, store},
};

/// Few names, so that they collide, with unusual ones.
const NAMES: [&[u8]; 9] =
    [b"a", b"b", b"c", b"a.b", b".wh.a", b".wh..wh..opq", b"\xff\xfe", b"new\nline", &[b'n'; 180]];

#[derive(Clone, Debug)]
enum HomeAction {
    Directory,
    Write(u16),
    Append,
    Grow(u32),
    Remove,
    Rename,
    RenameDirectory,
    Symlink,
    Link,
    Mode(u16),
    Attribute(u8),
    Touch(i64, u32),
    Pipe,
}

/// An action, indexes of the paths it acts on, and a new name.
#[derive(Clone, Debug)]
struct HomeStep {
    act: HomeAction,
    on: u16,
    into: u16,
    name: usize,
}

#[derive(Clone, Debug)]
struct RandomRun {
    steps: Vec<HomeStep>,
    restart: bool,
    squash: bool,
}

fn step() -> impl Strategy<Value = HomeStep> {
    let act = prop_oneof![
        3 => Just(HomeAction::Directory),
        4 => any::<u16>().prop_map(HomeAction::Write),
        3 => Just(HomeAction::Append),
        1 => (0_u32..200_000).prop_map(HomeAction::Grow),
        3 => Just(HomeAction::Remove),
        2 => Just(HomeAction::Rename),
        5 => Just(HomeAction::RenameDirectory),
        1 => Just(HomeAction::Symlink),
        4 => Just(HomeAction::Link),
        1 => (0_u16..0o2000).prop_map(HomeAction::Mode),
        1 => any::<u8>().prop_map(HomeAction::Attribute),
        1 => (-5_i64..1 << 33, 0_u32..1_000_000_000).prop_map(|(s, n)| HomeAction::Touch(s, n)),
        1 => Just(HomeAction::Pipe),
    ];
    (act, any::<u16>(), any::<u16>(), 0..NAMES.len()).prop_map(|(act, on, into, name)| HomeStep {
        act,
        on,
        into,
        name,
    })
}

fn run() -> impl Strategy<Value = RandomRun> {
    (vec(step(), 0..20), prop::bool::weighted(0.2), prop::bool::weighted(0.2))
        .prop_map(|(steps, restart, squash)| RandomRun { steps, restart, squash })
}

/// All paths below a directory, and those of directories, in a fixed order.
fn paths(top: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let (mut all, mut directories, mut next) = (Vec::new(), vec![top.to_owned()], 0);
    while next < directories.len() {
        let mut found: Vec<PathBuf> =
            fs::read_dir(&directories[next]).unwrap().map(|entry| entry.unwrap().path()).collect();
        found.sort();
        directories.extend(found.iter().filter(|path| is_directory(path)).cloned());
        all.append(&mut found);
        next += 1;
    }
    (all, directories)
}

fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}

/// Does one step in a home. Failures are ignored, as in a shell.
fn apply_step(top: &Path, step: &HomeStep) {
    let (all, directories) = paths(top);
    let pick = |from: &[PathBuf], at: u16| from.get(usize::from(at) % from.len().max(1)).cloned();
    let new = pick(&directories, step.into).unwrap().join(OsStr::from_bytes(NAMES[step.name]));
    let Some(old) = pick(&all, step.on) else {
        let _ = fs::write(new, b"first");
        return;
    };
    let meta = fs::symlink_metadata(&old).unwrap();
    let plain = meta.is_dir() || meta.is_file();
    let _ = match step.act {
        HomeAction::Directory => fs::create_dir(new),
        HomeAction::Write(seed) if !is_pipe(&new) => {
            let size = usize::from(seed) % 9000;
            let content: Vec<u8> = (0..size).map(|at| (at * usize::from(seed)) as u8).collect();
            fs::write(new, content)
        }
        HomeAction::Append if meta.is_file() => {
            File::options().append(true).open(old).and_then(|mut file| file.write_all(b"more"))
        }
        HomeAction::Grow(by) if meta.is_file() => {
            File::options().write(true).open(old).and_then(|file| {
                file.set_len(meta.len() + u64::from(by))?;
                file.write_all_at(b"island", meta.len() + u64::from(by / 2))
            })
        }
        HomeAction::Remove if meta.is_dir() => fs::remove_dir_all(old),
        HomeAction::Remove => fs::remove_file(old),
        HomeAction::Rename => fs::rename(old, new),
        HomeAction::RenameDirectory => {
            fs::rename(pick(&directories[1..], step.on).unwrap_or(old), new)
        }
        HomeAction::Symlink => symlink(old.file_name().unwrap(), new),
        HomeAction::Link if !meta.is_dir() => fs::hard_link(old, new),
        HomeAction::Mode(mode) if plain => {
            fs::set_permissions(old, Permissions::from_mode(u32::from(mode)))
        }
        HomeAction::Attribute(value) if plain => {
            let name = format!("user.{}", value % 3);
            rustix::fs::setxattr(old, name, &[value], XattrFlags::empty()).map_err(Into::into)
        }
        HomeAction::Touch(tv_sec, nanos) => {
            let time = Timespec { tv_sec, tv_nsec: i64::from(nanos) };
            let times = Timestamps { last_access: time, last_modification: time };
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::utimensat(CWD, old, &times, flags).map_err(Into::into)
        }
        HomeAction::Pipe => {
            rustix::fs::mknodat(CWD, new, FileType::Fifo, Mode::RUSR, 0).map_err(Into::into)
        }
        _ => Ok(()),
    };
}

/// An initial tree.
fn fill_tree(top: &Path) {
    for (directory, file) in [("a/b/c", "x"), ("b/a", "y"), ("c", "z"), ("c/a.b/b", "w")] {
        fs::create_dir_all(top.join(directory)).unwrap();
        fs::write(top.join(directory).join(file), file.repeat(5000)).unwrap();
    }
}

/// Whether a path is a pipe, on which a write would wait for a reader.
fn is_pipe(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::metadata(path).is_ok_and(|meta| meta.file_type().is_fifo())
}

/// Executes the runs of one case.
async fn run_case(runs: &[RandomRun]) {
    // A cache so small that it retains hardly anything that is not in use.
    let mut fixture = LayersFixture::with(ByteSize::kib(64), LayerBounds::default()).await;
    let overlay_dir = fixture.dir.path().join("overlay");
    let mut stack = Vec::new();
    let mut last: Option<Snapshot> = None;
    let mut trees = vec![Tree::default()];
    // The last run only reads.
    let nothing = RandomRun { steps: Vec::new(), restart: false, squash: false };
    for run in runs.iter().chain([&nothing]) {
        let mountable = fixture.layers.unpack_stack(&stack).await.unwrap();
        let Some(overlay) = Overlay::mount(&overlay_dir, &fixture.layers, &mountable) else {
            return;
        };
        if let Some(last) = &last {
            assert_same("mounted again", last, &snapshot(&overlay.merged()));
            let tree = fixture.layers.load_tree(&stack).await.unwrap();
            assert_same("as a tree", &without_content(last), &of_tree(&tree));
            trees.push(tree);
        }
        if stack.is_empty() && !run.steps.is_empty() {
            fill_tree(&overlay.merged());
        }
        for step in &run.steps {
            apply_step(&overlay.merged(), step);
        }
        let after = snapshot(&overlay.merged());
        let stored = store(&fixture.layers, overlay.pack()).await.unwrap();
        drop(overlay);
        drop(mountable);
        let Some(stored) = stored else { continue };
        stack.push(stored.layer.digest);
        last = Some(after);
        if run.squash {
            let squashed = fixture.layers.squash_stack(&stack).await.unwrap();
            stack = squashed.map(|squashed| squashed.layer.digest).into_iter().collect();
            if stack.is_empty() {
                last = None;
            }
        }
        if run.restart {
            fixture.reopen().await;
        }
    }
    for pair in trees.windows(2) {
        check_diff(&pair[0], &pair[1]);
    }
}

/// Checks that a diff lists exactly the paths that differ.
fn check_diff(old: &Tree, new: &Tree) {
    let diff = Tree::diff(old, new);
    let (before, after) = (of_tree(old), of_tree(new));
    assert!(diff.added.iter().all(|path| !before.contains_key(path) && after.contains_key(path)));
    assert!(diff.removed.iter().all(|path| before.contains_key(path) && !after.contains_key(path)));
    let both = after.keys().filter(|path| before.contains_key(*path)).count();
    assert_eq!(after.len(), both + diff.added.len());
    assert_eq!(before.len(), both + diff.removed.len());
    for path in after.keys().filter(|path| before.contains_key(*path)) {
        let (was, is) = (old.get(path).unwrap(), new.get(path).unwrap());
        let same = (&was.kind, was.mode, &was.xattrs, was.content, was.size)
            == (&is.kind, is.mode, &is.xattrs, is.content, is.size);
        let same =
            same && (was.kind == cloche_layers::NodeKind::Directory || was.mtime == is.mtime);
        assert_eq!(diff.changed.contains(path), !same, "{:?}", String::from_utf8_lossy(path));
    }
}

proptest! {
    #![proptest_config(crate::support::cases(24))]

    #[test]
    fn a_home_keeps_random_changes_over_many_runs(runs in vec(run(), 2..7)) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(run_case(&runs));
    }
}
