//! One line of text on the stack: the page path allocates nothing.

/// Room for a line.
const ROOM: usize = 512;

/// A line being written; what does not fit is left out.
pub(crate) struct Line {
    bytes: [u8; ROOM],
    used: usize,
}

impl Line {
    /// An empty line.
    pub(crate) fn new() -> Self {
        Self {
            bytes: [0; ROOM],
            used: 0,
        }
    }

    /// What was written.
    pub(crate) fn as_str(&self) -> &str {
        // Cut at a character's boundary by `write_str`.
        std::str::from_utf8(&self.bytes[..self.used]).unwrap_or("")
    }
}

impl std::fmt::Write for Line {
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
