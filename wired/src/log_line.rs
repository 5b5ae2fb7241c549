//! A line for the operator, formatted without allocation.

/// Bytes of the longest line.
const CAPACITY: usize = 512;

/// A line of text on the stack, cut to `CAPACITY` bytes.
pub struct LogLine {
    bytes: [u8; CAPACITY],
    used: usize,
}

impl LogLine {
    /// Formats a line.
    pub fn new(text: std::fmt::Arguments<'_>) -> Self {
        let mut line = Self {
            bytes: [0; CAPACITY],
            used: 0,
        };
        // Text that does not fit is cut, and never an error.
        let _ = std::fmt::Write::write_fmt(&mut line, text);
        line
    }

    /// The formatted text.
    pub fn as_str(&self) -> &str {
        // Cut at a character's boundary by `write_str`.
        std::str::from_utf8(&self.bytes[..self.used]).unwrap_or("")
    }
}

impl std::fmt::Write for LogLine {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = CAPACITY - self.used;
        let mut cut = text.len().min(room);
        while !text.is_char_boundary(cut) {
            cut -= 1;
        }
        self.bytes[self.used..self.used + cut].copy_from_slice(&text.as_bytes()[..cut]);
        self.used += cut;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut_at_a_character() {
        let text = "x".repeat(CAPACITY - 1) + "äö";
        let line = LogLine::new(format_args!("{text}"));
        assert_eq!(line.as_str(), &text[..CAPACITY - 1]);
        assert_eq!(LogLine::new(format_args!("{} {}", 1, 2)).as_str(), "1 2");
    }
}
