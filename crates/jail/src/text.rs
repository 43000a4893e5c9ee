//! Short texts put together without allocating. Core only.

/// A short text put together without allocating; what does not fit is left out.
pub(crate) struct Text {
    bytes: [u8; 128],
    len: usize,
}

impl Default for Text {
    fn default() -> Self {
        Self { bytes: [0; 128], len: 0 }
    }
}

impl Text {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn text(&mut self, text: &[u8]) -> &mut Self {
        let room = &mut self.bytes[self.len..];
        let fits = text.len().min(room.len());
        room[..fits].copy_from_slice(&text[..fits]);
        self.len += fits;
        self
    }

    pub(crate) fn number(&mut self, mut number: u32) -> &mut Self {
        let mut digits = [0; 10];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return self.text(&digits[at..]);
            }
        }
    }
}

impl Text {
    /// A process by its number.
    pub(crate) fn pid(&mut self, pid: i32) -> &mut Self {
        self.number(pid.unsigned_abs())
    }
}

#[cfg(all(test, not(cloche_template)))]
mod tests {
    use super::*;

    #[test]
    pub(crate) fn numbers_are_written_in_decimal_and_never_past_the_end() {
        let mut text = Text::default();
        text.number(0).text(b" ").number(u32::MAX);
        assert_eq!(text.bytes(), b"0 4294967295");
        (0..50).for_each(|_| {
            text.text(b"abcdef");
        });
        assert_eq!(text.bytes().len(), 128);
    }
}
