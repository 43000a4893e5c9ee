//! Runs in: template, guest of a forked cell.
//!
//! Mapping pages ahead of their first use, so that a new guest takes few page faults. Core only.

use super::{raw::syscall, syscall_table::Call};

const POPULATE_READ: usize = 22;
const POPULATE_WRITE: usize = 23;

/// Ranges of pages that every copy of this process writes to, followed by ranges that it only
/// reads. Only the template library makes a value.
#[derive(Clone, Copy)]
pub struct HotPages {
    ranges: *const [usize; 2],
    written: usize,
    count: usize,
}

impl HotPages {
    /// Of `count` ranges, each an address and a length, the first `written` are written to.
    ///
    /// # Safety
    /// `ranges` must point to `count` ranges of this process's own memory, and both the array and
    /// this memory must stay mapped for the life of the process and of its copies.
    #[cfg(cloche_template)]
    pub(super) const unsafe fn new(
        ranges: *const [usize; 2],
        written: usize,
        count: usize,
    ) -> Self {
        Self { ranges, written, count }
    }

    /// Maps all of them now; those that will be written to become this process's own copies.
    pub fn map(self) {
        self.advise_range(0, self.written, POPULATE_WRITE);
        self.advise_range(self.written, self.count, POPULATE_READ);
    }

    /// The same under the walls of a guest, which do not let it advise several ranges at once.
    pub fn map_inside(self) {
        for at in 0..self.count {
            self.advise_one(at, if at < self.written { POPULATE_WRITE } else { POPULATE_READ });
        }
    }

    fn advise_range(self, from: usize, to: usize, advice: usize) {
        const MYSELF: usize = -10_000_isize as usize;
        const AT_ONCE: usize = 1024;
        for first in (from..to).step_by(AT_ONCE) {
            let some = first..to.min(first + AT_ONCE);
            // SAFETY: by the contract of `new`, `ranges` is an array of `count` ranges of memory of
            // this process, each an address and a length, as in struct iovec. The advice changes no
            // byte there. A page that is not mapped ahead is mapped when it is used.
            unsafe {
                let all = [MYSELF, self.ranges.add(first) as usize, some.len(), advice, 0, 0];
                // Kernels before 6.14 take this advice for one range at a time only.
                if syscall(Call::ProcessMadvise, all).is_err() {
                    some.for_each(|at| self.advise_one(at, advice));
                }
            }
        }
    }

    fn advise_one(self, at: usize, advice: usize) {
        // SAFETY: as above; `at` is below `count`.
        unsafe {
            let [address, len] = *self.ranges.add(at);
            let _ = syscall(Call::Madvise, [address, len, advice, 0, 0, 0]);
        }
    }
}
