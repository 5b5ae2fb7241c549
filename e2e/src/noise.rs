//! Data that is the same on every run, made without keeping it.

/// A generator of well-mixed words (splitmix64).
#[derive(Clone, Debug)]
pub struct Noise(u64);

impl Noise {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next word.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.word() % limit.max(1)
    }

    /// Appends `count` letters, half of them drawn from few: text that compresses as
    /// text does.
    pub fn text(&mut self, count: usize, out: &mut Vec<u8>) {
        let end = out.len() + count;
        while out.len() < end {
            let word = self.word();
            for k in 0..8.min(end - out.len()) {
                let byte = (word >> (8 * k)) as u8;
                out.push(if byte < 128 {
                    b'a' + byte % 4
                } else {
                    b'a' + byte % 26
                });
            }
        }
    }
}
