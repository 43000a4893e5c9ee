//! Runs in: server (no capabilities). What an approver is shown of a home: the paths that differ from the
//! state that was last approved, with the content of small texts, and a warning on those that run by
//! themselves.

use cloche_layers::{Layers, NodeKind, Tree, TreeNode};
use cloche_model::{ChangeKind, ChangedPath, HomeChanges, HomePath, HomeState};
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;

use super::{Approvals, startup_files::warning_for};
use crate::{
    Caller, Refusal,
    threads::{layer_refusal, thread_key},
};

/// The most paths that are listed.
const PATHS: usize = 500;
/// The largest text whose content is shown.
const TEXT: u64 = 64 << 10;
/// The most bytes of contents that are shown.
const TEXTS: u64 = 512 << 10;
/// The most bytes that are read for digests of files that are not shown.
const HASHED: u64 = 32 << 20;

/// A path that differs, before its content is read.
struct FoundChange<'a> {
    path: &'a [u8],
    change: ChangeKind,
    node: &'a TreeNode,
    warning: Option<String>,
}

impl Approvals {
    /// What differs between the home that was last approved and this one.
    pub(super) async fn home_changes(
        &self,
        caller: &Caller,
        home: &HomeState,
    ) -> Result<HomeChanges, Refusal> {
        let approved = self.store.approved_home(&thread_key(&caller.team, &home.thread)).await?;
        let since = approved.as_ref().map(|(id, _)| id.to_string());
        if approved.as_ref().is_some_and(|(_, layers)| *layers == home.layers)
            || approved.is_none() && home.layers.is_empty()
        {
            return Ok(HomeChanges { since, ..HomeChanges::default() });
        }
        let new = self.threads.home_tree(&home.layers).await?;
        let old = match approved {
            Some((_, layers)) => self.threads.home_tree(&layers).await.ok(),
            None => None,
        };
        // A state whose layers are gone cannot be compared with: everything is listed.
        let since = since.filter(|_| old.is_some());
        let old = old.unwrap_or_default();
        let (found, omitted) = find_changes(&old, &new);
        let paths = self.read_contents(&found).await?;
        Ok(HomeChanges { since, note: None, paths, omitted })
    }

    async fn read_contents(&self, found: &[FoundChange<'_>]) -> Result<Vec<ChangedPath>, Refusal> {
        let (mut texts, mut hashed) = (TEXTS, HASHED);
        let mut paths = Vec::with_capacity(found.len());
        for found in found {
            let mut path = describe_change(found);
            let is_read = found.node.kind == NodeKind::File && found.change != ChangeKind::Removed;
            if is_read && found.node.size <= TEXT.min(texts) {
                let bytes = read_file(self.threads.layers()?, found.node).await?;
                match String::from_utf8(bytes) {
                    Ok(text) if !text.contains('\0') => {
                        texts -= text.len() as u64;
                        path.content = Some(text);
                    }
                    Ok(text) => set_binary(&mut path, text.as_bytes()),
                    Err(error) => set_binary(&mut path, error.as_bytes()),
                }
            } else if is_read && found.node.size <= hashed {
                hashed -= found.node.size;
                (path.sha256, path.binary) = hash_file(self.threads.layers()?, found.node).await?;
            }
            paths.push(path);
        }
        Ok(paths)
    }
}

/// Files, links and pipes that differ, those that run by themselves first; and how many were left out.
fn find_changes<'a>(old: &'a Tree, new: &'a Tree) -> (Vec<FoundChange<'a>>, u64) {
    let mut found = Vec::new();
    for (path, node) in new.walk().filter(|(_, node)| node.kind != NodeKind::Directory) {
        let change = match old.get(path) {
            None => ChangeKind::Added,
            Some(before) if is_same(before, node) => continue,
            Some(_) => ChangeKind::Changed,
        };
        found.push(FoundChange { path, change, node, warning: warning_for(path) });
    }
    for (path, node) in old.walk().filter(|(_, node)| node.kind != NodeKind::Directory) {
        if new.get(path).is_none_or(|now| now.kind == NodeKind::Directory) {
            let warning = warning_for(path);
            found.push(FoundChange { path, change: ChangeKind::Removed, node, warning });
        }
    }
    found.sort_by_key(|found| (found.warning.is_none(), found.path));
    let omitted = found.len().saturating_sub(PATHS) as u64;
    found.truncate(PATHS);
    (found, omitted)
}

/// Whether a program that reads it would see the same.
fn is_same(before: &TreeNode, now: &TreeNode) -> bool {
    before.kind == now.kind
        && before.size == now.size
        && before.content == now.content
        && before.mode == now.mode
        && before.xattrs == now.xattrs
}

fn describe_change(found: &FoundChange<'_>) -> ChangedPath {
    let removed = found.change == ChangeKind::Removed;
    let target = match &found.node.kind {
        NodeKind::Symlink(target) if !removed => Some(HomePath::text_of(target)),
        _ => None,
    };
    ChangedPath {
        path: HomePath::text_of(found.path),
        change: found.change,
        size: if removed { 0 } else { found.node.size },
        warning: found.warning.clone(),
        target,
        sha256: None,
        content: None,
        binary: !removed && found.node.kind == NodeKind::Fifo,
    }
}

fn set_binary(path: &mut ChangedPath, bytes: &[u8]) {
    path.binary = true;
    path.sha256 = Some(hex::encode(Sha256::digest(bytes)));
}

async fn read_file(layers: &Layers, node: &TreeNode) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    let mut content = layers.open_node(node, None).await.map_err(layer_refusal)?.content;
    content.read_to_end(&mut bytes).await.map_err(Refusal::internal)?;
    Ok(bytes)
}

/// The digest of a file of any size, and whether it is no text.
async fn hash_file(layers: &Layers, node: &TreeNode) -> Result<(Option<String>, bool), Refusal> {
    let mut content = layers.open_node(node, None).await.map_err(layer_refusal)?.content;
    let (mut hash, mut chunk) = (Sha256::new(), vec![0; 64 << 10]);
    let (mut binary, mut first) = (false, true);
    loop {
        let length = content.read(&mut chunk).await.map_err(Refusal::internal)?;
        if length == 0 {
            return Ok((Some(hex::encode(hash.finalize())), binary));
        }
        if std::mem::take(&mut first) {
            binary = chunk[..length.min(8192)].contains(&0);
        }
        hash.update(&chunk[..length]);
    }
}
