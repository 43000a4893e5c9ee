//! Reads one file of a stack, or a range of it, directly from its blob.

use std::{io, ops::Range};

use bytes::{Buf, Bytes, BytesMut};
use cloche_model::LayerDigest;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use tokio::io::AsyncRead;
use tokio_util::io::StreamReader;
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

use crate::{
    LayerError, LayerIndex, Layers, TreeNode,
    entry::{EntryKind, Extent},
    tree::NodeKind,
};

/// How many bytes are decompressed at a time.
const PIECE: usize = 1 << 17;

/// An open file of a stack.
pub struct OpenFile {
    /// The file's metadata.
    pub node: TreeNode,
    /// The range that is read.
    pub range: Range<u64>,
    /// The bytes of that range.
    pub content: Box<dyn AsyncRead + Send + Unpin>,
}

/// A segment of a file: a range of the archive, or a hole.
enum FileSegment {
    Data(Range<u64>),
    Hole(u64),
}

impl Layers {
    /// Opens a file for reading. A range is cut to the file's size. Symbolic links are not
    /// followed.
    ///
    /// # Errors
    /// If no file is at the path, the range begins after its end, or the store fails.
    pub async fn open_file(
        &self,
        stack: &[LayerDigest],
        path: &[u8],
        range: Option<Range<u64>>,
    ) -> Result<OpenFile, LayerError> {
        let tree = self.load_tree(stack).await?;
        let text = || String::from_utf8_lossy(path).into_owned();
        let node = tree.get(path).ok_or_else(|| LayerError::NoSuchPath(text()))?;
        if node.kind != NodeKind::File {
            return Err(LayerError::WrongKind(text(), "is not a file"));
        }
        self.open_node(node, range).await
    }

    /// Like [`open_file`](Self::open_file), for a file of a tree that is already loaded.
    ///
    /// # Errors
    /// If the node is not a file, the range begins after its end, or the store fails.
    pub async fn open_node(
        &self,
        node: &TreeNode,
        range: Option<Range<u64>>,
    ) -> Result<OpenFile, LayerError> {
        let text = || String::from_utf8_lossy(&node.path_in_layer).into_owned();
        let range = range.unwrap_or(0..node.size);
        if range.start > node.size || range.start > range.end {
            return Err(LayerError::WrongKind(text(), "is shorter than the requested range"));
        }
        let range = range.start..range.end.min(node.size);
        let index = self.load_index(&node.layer).await?;
        let Some(EntryKind::File { size, extents, data_at, .. }) =
            index.get(&node.path_in_layer).map(|entry| &entry.kind)
        else {
            return Err(LayerError::WrongKind(text(), "is not a file"));
        };
        let whole = [Extent { offset: 0, length: *size }];
        let parts = file_segments(extents.as_deref().unwrap_or(&whole), *data_at, &range);
        let archive = self.stream_archive(&node.layer, &index, &parts).await?;
        let pieces = Box::pin(stream_segments(parts, archive));
        let content = Box::new(StreamReader::new(pieces));
        Ok(OpenFile { node: node.clone(), range, content })
    }

    /// Streams the part of the archive that contains these segments, from its first byte on.
    async fn stream_archive(
        &self,
        layer: &LayerDigest,
        index: &LayerIndex,
        parts: &[FileSegment],
    ) -> Result<ArchiveStream, LayerError> {
        let data: Vec<&Range<u64>> = parts
            .iter()
            .filter_map(|part| match part {
                FileSegment::Data(range) => Some(range),
                FileSegment::Hole(_) => None,
            })
            .collect();
        let (Some(first), Some(last)) = (data.first(), data.last()) else {
            return Ok(ArchiveStream { at: 0, pieces: stream::empty().boxed() });
        };
        let (frame, end) = index.frames_for(first.start, last.end);
        let blob = self.0.blobs.stream_blob(layer, Some(frame.blob_at..end)).await?;
        let blob = blob.map_err(io::Error::other).boxed();
        Ok(ArchiveStream { at: frame.archive_at, pieces: decompress_stream(blob).boxed() })
    }
}

/// The ranges of the archive and the holes that make up a range of a file.
fn file_segments(extents: &[Extent], data_at: u64, range: &Range<u64>) -> Vec<FileSegment> {
    let mut parts = Vec::new();
    let (mut at, mut archive_at) = (range.start, data_at);
    for extent in extents {
        let (start, end) = (extent.offset, extent.offset + extent.length);
        let (from, to) = (start.max(at), end.min(range.end));
        if from < to {
            if from > at {
                parts.push(FileSegment::Hole(from - at));
            }
            parts.push(FileSegment::Data(archive_at + (from - start)..archive_at + (to - start)));
            at = to;
        }
        archive_at += extent.length;
    }
    if at < range.end {
        parts.push(FileSegment::Hole(range.end - at));
    }
    parts
}

/// An archive that is read forwards.
struct ArchiveStream {
    at: u64,
    pieces: stream::BoxStream<'static, io::Result<Bytes>>,
}

/// Streams the bytes of these segments.
fn stream_segments(
    parts: Vec<FileSegment>,
    archive: ArchiveStream,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let state = (parts.into_iter(), None, archive, Bytes::new());
    stream::try_unfold(state, async |(mut parts, mut part, mut archive, mut piece)| {
        loop {
            match part.take().or_else(|| parts.next()) {
                None => return Ok(None),
                Some(FileSegment::Hole(0)) => {}
                Some(FileSegment::Data(range)) if range.is_empty() => {}
                Some(FileSegment::Hole(length)) => {
                    static ZEROS: [u8; PIECE] = [0; PIECE];
                    let count = length.min(PIECE as u64);
                    let zeros = Bytes::from_static(&ZEROS[..count as usize]);
                    let next = Some(FileSegment::Hole(length - count));
                    return Ok(Some((zeros, (parts, next, archive, piece))));
                }
                Some(FileSegment::Data(range)) => {
                    if piece.is_empty() {
                        let next = archive.pieces.next().await;
                        piece = next.ok_or(io::ErrorKind::UnexpectedEof)??;
                    }
                    let skip = (range.start - archive.at).min(piece.len() as u64);
                    piece.advance(skip as usize);
                    archive.at += skip;
                    let count = (range.end - archive.at).min(piece.len() as u64);
                    part = Some(FileSegment::Data(range.start.max(archive.at + count)..range.end));
                    if archive.at < range.start || count == 0 {
                        part = Some(FileSegment::Data(range));
                        continue;
                    }
                    archive.at += count;
                    let bytes = piece.split_to(count as usize);
                    return Ok(Some((bytes, (parts, part, archive, piece))));
                }
            }
        }
    })
}

/// Decompresses on the async task, so that slow readers do not occupy a thread.
fn decompress_stream(
    blob: stream::BoxStream<'static, io::Result<Bytes>>,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let state = (blob, Bytes::new(), None);
    stream::try_unfold(state, async |(mut blob, mut input, decoder): (_, Bytes, _)| {
        let mut decoder = match decoder {
            Some(decoder) => decoder,
            None => Decoder::new()?,
        };
        loop {
            if input.is_empty() {
                match StreamExt::next(&mut blob).await {
                    Some(next) => input = next?,
                    None => return Ok(None),
                }
            }
            let mut output = BytesMut::zeroed(PIECE);
            let (read, written) = {
                let mut from = InBuffer::around(&input);
                let mut to = OutBuffer::around(&mut output[..]);
                decoder.run(&mut from, &mut to)?;
                (from.pos(), to.pos())
            };
            input.advance(read);
            if written > 0 {
                output.truncate(written);
                return Ok(Some((output.freeze(), (blob, input, Some(decoder)))));
            }
        }
    })
}
