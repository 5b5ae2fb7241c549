//! Text to be sorted: lines of letters, the second half of each repeating the first, so
//! that pages of it compress 2:1 under lz4.

use crate::prelude::*;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;

/// Letters after which the second half repeats.
const PERIOD: usize = 8;

/// Writes at least `bytes` bytes of lines whose lengths are in `lengths`. How many lines.
pub fn write(path: &Path, bytes: u64, lengths: Range<u64>) -> Result<u64> {
    let writing = || format!("write {}", path.display());
    let file = File::create(path).doing(writing())?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let (mut line, mut lines, mut written) = (Vec::new(), 0, 0);
    while written < bytes {
        fill(&mut line, lines, &lengths);
        out.write_all(&line).doing(writing())?;
        written += line.len() as u64;
        lines += 1;
    }
    out.flush().doing(writing())?;
    Ok(lines)
}

fn fill(line: &mut Vec<u8>, number: u64, lengths: &Range<u64>) {
    let length = lengths.start + mix(number << 20) % (lengths.end - lengths.start);
    line.clear();
    let noise = (length / 2) as usize;
    for k in 0..noise.div_ceil(PERIOD) {
        let letters = mix(number << 20 ^ k as u64 ^ 1 << 60).to_le_bytes();
        line.extend(letters.map(|byte| b'a' + byte % 26));
    }
    line.truncate(noise.max(PERIOD));
    while (line.len() as u64) < length - 1 {
        line.push(line[line.len() - PERIOD]);
    }
    line.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_lines_compresses_two_to_one() {
        let (mut page, mut line, mut number) = (Vec::new(), Vec::new(), 0);
        while page.len() < 4096 {
            fill(&mut line, number, &(100..400));
            assert!((100..400).contains(&line.len()) && line.ends_with(b"\n"));
            page.extend_from_slice(&line);
            number += 1;
        }
        let ratio = page.len() as f64 / lz4_flex::compress(&page).len() as f64;
        assert!((1.7..2.2).contains(&ratio), "{ratio}");
    }
}
