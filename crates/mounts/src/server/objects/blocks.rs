//! Runs in: mount server (no capabilities). The bytes of a range of an object, as they arrive.
//!
//! They are kept in blocks that are used again: memory that was never touched costs a page fault for
//! every 4 KiB, which takes longer than to copy them. The kernel asks for whole blocks when it reads
//! in order, so those are handed on without a copy. They begin where a page begins: the kernel takes
//! answers page by page, and a page of the file would otherwise come from two of ours.

use std::{ops::Range, sync::Arc};

use bytes::{Buf as _, Bytes, BytesMut};
use parking_lot::Mutex;

/// The bytes of one block, and the places at which blocks of an object begin.
pub(super) const READ_BLOCK: u64 = 1 << 20;
/// The most unused blocks that are kept.
const MAX_UNUSED: usize = 40;
/// The size of a page of memory.
const PAGE: usize = 4096;

/// Blocks that are used again.
#[derive(Clone, Default)]
pub(super) struct BlockPool(Arc<Mutex<Vec<BytesMut>>>);

impl BlockPool {
    fn take(&self, size: usize) -> BytesMut {
        if (size as u64) < READ_BLOCK {
            return BytesMut::with_capacity(size);
        }
        let unused = self.0.lock().pop();
        unused.unwrap_or_else(|| {
            let mut block = BytesMut::with_capacity(size + PAGE);
            let before = block.as_ptr().align_offset(PAGE).min(PAGE);
            block.resize(before, 0);
            block.advance(before);
            block
        })
    }

    /// Takes back a block that no answer uses any more.
    fn give_back(&self, block: Bytes) {
        let Ok(mut block) = block.try_into_mut() else { return };
        block.clear();
        let mut unused = self.0.lock();
        if block.capacity() as u64 >= READ_BLOCK && unused.len() < MAX_UNUSED {
            unused.push(block);
        }
    }
}

/// The bytes of a range from its start on.
pub(super) struct RangeBlocks {
    range: Range<u64>,
    /// Full blocks in order. All but the first and the last have the length of one block.
    full: Vec<Bytes>,
    /// How many of them were let go.
    released: usize,
    /// The block that is being filled.
    filling: BytesMut,
    arrived: u64,
    pool: BlockPool,
}

impl RangeBlocks {
    pub(super) fn new(range: Range<u64>, pool: BlockPool) -> Self {
        let (full, filling) = (Vec::new(), BytesMut::new());
        Self { range, full, released: 0, filling, arrived: 0, pool }
    }

    /// Where the bytes that have not arrived begin.
    pub(super) fn end(&self) -> u64 {
        self.range.start + self.arrived
    }

    /// Where the bytes that are kept begin.
    pub(super) fn start(&self) -> u64 {
        match self.released {
            0 => self.range.start,
            released => (self.range.start / READ_BLOCK + released as u64) * READ_BLOCK,
        }
    }

    /// Lets go full blocks that end before this place.
    pub(super) fn release_before(&mut self, at: u64) {
        while self.block_at(self.start()).end <= at
            && let Some(block) = self.full.get_mut(self.released)
        {
            let block = std::mem::take(block);
            self.pool.give_back(block);
            self.released += 1;
        }
    }

    /// Adds what has arrived; what is beyond the range is dropped.
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.end() < self.range.end {
            let block = self.block_at(self.end());
            if self.filling.is_empty() {
                self.filling = self.pool.take(length(&block));
            }
            let missing = length(&block) - self.filling.len();
            let (now, later) = bytes.split_at(missing.min(bytes.len()));
            self.filling.extend_from_slice(now);
            self.arrived += now.len() as u64;
            bytes = later;
            if self.filling.len() == length(&block) {
                self.full.push(std::mem::take(&mut self.filling).freeze());
            }
        }
    }

    /// Bytes of the range that have arrived; `None` if some were let go. They are copied unless one
    /// full block has all of them.
    pub(super) fn get(&self, range: Range<u64>) -> Option<Bytes> {
        if range.start < self.start() {
            return None;
        }
        let first = self.block_at(range.start);
        if range.end <= first.end
            && let Some(block) = self.full.get(self.index_of(range.start))
        {
            let start = usize::try_from(range.start - first.start).unwrap_or(0);
            return Some(block.slice(start..start + length(&range)));
        }
        let mut copy = BytesMut::with_capacity(length(&range));
        let mut at = range.start;
        while at < range.end {
            let block = self.block_at(at);
            let filled = self.full.get(self.index_of(at)).map_or(&*self.filling, |block| &**block);
            let end = block.end.min(range.end);
            let part = (at - block.start)..(end - block.start);
            let part =
                usize::try_from(part.start).unwrap_or(0)..usize::try_from(part.end).unwrap_or(0);
            let Some(part) = filled.get(part) else { break };
            copy.extend_from_slice(part);
            at = end;
        }
        Some(copy.freeze())
    }

    /// The block that has this byte, within the range.
    fn block_at(&self, at: u64) -> Range<u64> {
        let start = at - at % READ_BLOCK;
        start.max(self.range.start)..(start + READ_BLOCK).min(self.range.end)
    }

    fn index_of(&self, at: u64) -> usize {
        usize::try_from(at / READ_BLOCK - self.range.start / READ_BLOCK).unwrap_or(usize::MAX)
    }
}

impl Drop for RangeBlocks {
    fn drop(&mut self) {
        self.full.drain(..).for_each(|block| self.pool.give_back(block));
    }
}

fn length(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(range: Range<u64>) -> Vec<u8> {
        range.map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn any_part_that_has_arrived_can_be_read() {
        let range = (READ_BLOCK - 1000)..(3 * READ_BLOCK + 500);
        let mut blocks = RangeBlocks::new(range.clone(), BlockPool::default());
        let all = content(range.clone());
        for chunk in all.chunks(400_001) {
            blocks.push(chunk);
            let end = blocks.end();
            for part in [range.start..end, end - 900..end, range.start + 10..range.start + 20] {
                assert_eq!(blocks.get(part.clone()).unwrap(), content(part));
            }
        }
        blocks.push(b"too much");
        assert_eq!(blocks.end(), range.end);
        assert_eq!(blocks.get(range.clone()).unwrap(), all);
    }

    #[test]
    fn a_whole_block_is_not_copied_and_used_again() {
        let pool = BlockPool::default();
        let mut blocks = RangeBlocks::new(0..2 * READ_BLOCK, pool.clone());
        blocks.push(&content(0..2 * READ_BLOCK));
        let read = blocks.get(READ_BLOCK..2 * READ_BLOCK).unwrap();
        assert_eq!(read.as_ptr(), blocks.full[1].as_ptr());
        let begins: Vec<_> = blocks.full.iter().map(|block| block.as_ptr()).collect();
        assert!(begins.iter().all(|begin| begin.align_offset(PAGE) == 0));
        drop(blocks);
        // The answer still has the other one.
        assert_eq!(pool.0.lock().len(), 1);
        assert_eq!(pool.0.lock()[0].as_ptr(), begins[0]);
        drop(read);
        let mut again = RangeBlocks::new(0..READ_BLOCK, pool.clone());
        again.push(&content(0..READ_BLOCK));
        assert!(pool.0.lock().is_empty());
    }

    #[test]
    fn blocks_that_were_let_go_are_used_again_and_cannot_be_read() {
        let pool = BlockPool::default();
        let range = (READ_BLOCK / 2)..(4 * READ_BLOCK);
        let mut blocks = RangeBlocks::new(range.clone(), pool.clone());
        blocks.push(&content(range.start..3 * READ_BLOCK + 5));
        blocks.release_before(READ_BLOCK - 1);
        assert_eq!(blocks.start(), range.start);
        // The first one is shorter, so it is of no use.
        blocks.release_before(3 * READ_BLOCK - 1);
        assert_eq!((blocks.start(), pool.0.lock().len()), (2 * READ_BLOCK, 1));
        // A block that is being filled is kept.
        blocks.release_before(range.end);
        assert_eq!((blocks.start(), pool.0.lock().len()), (3 * READ_BLOCK, 2));
        assert_eq!(blocks.get(READ_BLOCK..READ_BLOCK + 1), None);
        let kept = 3 * READ_BLOCK..3 * READ_BLOCK + 5;
        assert_eq!(blocks.get(kept.clone()).unwrap(), content(kept));
        blocks.push(&content(3 * READ_BLOCK + 5..range.end));
        assert_eq!(blocks.end(), range.end);
        let last = range.end - 10..range.end;
        assert_eq!(blocks.get(last.clone()).unwrap(), content(last));
    }
}
