//! Runs in: template, pid 1 of a cell, guest.
//!
//! Formats short texts without allocation. Core only.

/// A text of at most 128 bytes; bytes that do not fit are dropped.
pub(crate) struct FmtBuf {
    bytes: [u8; 128],
    len: usize,
}

impl Default for FmtBuf {
    fn default() -> Self {
        Self { bytes: [0; 128], len: 0 }
    }
}

impl FmtBuf {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn push_bytes(&mut self, text: &[u8]) -> &mut Self {
        let free = &mut self.bytes[self.len..];
        let fits = text.len().min(free.len());
        free[..fits].copy_from_slice(&text[..fits]);
        self.len += fits;
        self
    }

    pub(crate) fn push_number(&mut self, mut number: u32) -> &mut Self {
        let mut digits = [0; 10];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return self.push_bytes(&digits[at..]);
            }
        }
    }

    pub(crate) fn push_pid(&mut self, pid: i32) -> &mut Self {
        self.push_number(pid.unsigned_abs())
    }
}

#[cfg(all(test, not(cloche_template)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_in_decimal_and_truncated_at_the_end() {
        let mut text = FmtBuf::default();
        text.push_number(0).push_bytes(b" ").push_number(u32::MAX);
        assert_eq!(text.as_bytes(), b"0 4294967295");
        (0..50).for_each(|_| {
            text.push_bytes(b"abcdef");
        });
        assert_eq!(text.as_bytes().len(), 128);
    }
}
