//! A line for the operator, formatted where nothing may be allocated.

/// Room for a line, in bytes.
const ROOM: usize = 512;

/// A line of text on the stack; what does not fit is left out.
pub struct LogLine {
    bytes: [u8; ROOM],
    used: usize,
}

impl LogLine {
    /// A line of this text.
    pub fn new(text: std::fmt::Arguments<'_>) -> Self {
        let mut line = Self {
            bytes: [0; ROOM],
            used: 0,
        };
        // What does not fit is no error.
        let _ = std::fmt::Write::write_fmt(&mut line, text);
        line
    }

    /// What was written.
    pub fn as_str(&self) -> &str {
        // Cut at a character's boundary by `write_str`.
        std::str::from_utf8(&self.bytes[..self.used]).unwrap_or("")
    }
}

impl std::fmt::Write for LogLine {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = ROOM - self.used;
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
    fn what_does_not_fit_is_cut_at_a_character() {
        let text = "x".repeat(ROOM - 1) + "äö";
        let line = LogLine::new(format_args!("{text}"));
        assert_eq!(line.as_str(), &text[..ROOM - 1]);
        assert_eq!(LogLine::new(format_args!("{} {}", 1, 2)).as_str(), "1 2");
    }
}
