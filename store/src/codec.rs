//! What becomes of a page's contents in RAM: a repeated value, a packed form, or themselves.
//!
//! The tables and buffers are the channel's, so that nothing is allocated.

use crate::pack::Packer;
use crate::unpack::Packed;
use wired::PAGE;

/// Packs and unpacks.
pub(crate) struct Codec {
    packer: Packer,
    unpack: Packed,
}

impl Codec {
    /// A codec that has seen nothing.
    pub fn new() -> Self {
        Self {
            packer: Packer::new(),
            unpack: Packed::new(),
        }
    }

    /// Compresses a page; how long it got, or `None` where that is not worth it.
    pub fn compress(&mut self, page: &[u8; PAGE]) -> Option<usize> {
        self.packer.pack(page)
    }

    /// What was compressed last.
    pub fn packed(&self, len: usize) -> &[u8] {
        self.packer.packed(len)
    }

    /// A buffer for what is about to be decompressed: another than what compression fills,
    /// because making room for a compressed page may mean decompressing others.
    pub fn unpack_buffer(&mut self) -> &mut [u8] {
        self.unpack.bytes()
    }

    /// Unpacks the first `len` bytes of [`Codec::unpack_buffer`] into `page`; false if they
    /// are not a page.
    pub fn decompress(&self, len: usize, page: &mut [u8; PAGE]) -> bool {
        self.unpack.unpack(len, page)
    }
}

/// The value a page repeats, if it repeats one that an entry can hold: not one that reads
/// as a place (see [`Spot`](crate::place::Spot)), lest a mover take it for one.
pub(crate) fn filled_with(page: &[u8; PAGE]) -> Option<u64> {
    let (words, _) = page.as_chunks::<8>();
    let value = u64::from_ne_bytes(words[0]);
    let repeats = words.iter().all(|word| *word == words[0]);
    (repeats && crate::place::Spot::decode(value) == crate::place::Spot::Nowhere).then_some(value)
}

/// Repeats a value over a page.
pub(crate) fn fill(page: &mut [u8; PAGE], value: u64) {
    let (words, _) = page.as_chunks_mut::<8>();
    words.fill(value.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::WORTH_IT;
    use proptest::prelude::*;

    type Page = [u8; PAGE];

    /// Numbers, the same each time.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (self.0 ^ self.0 >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd)
        }
    }

    /// Packs, unpacks with both decoders, compares.
    fn check(codec: &mut Codec, page: &Page) -> Option<usize> {
        let len = codec.compress(page)?;
        let packed = codec.packed(len).to_vec();
        let mut back = [0; PAGE];
        let theirs = lz4_flex::block::decompress_into(&packed, &mut back);
        assert!(matches!(theirs, Ok(PAGE)));
        assert!(back == *page, "another decoder finds another page");
        assert!(unpack(codec, &packed).is_some_and(|back| back == *page));
        Some(len)
    }

    fn unpack(codec: &mut Codec, packed: &[u8]) -> Option<Page> {
        let mut back = [0; PAGE];
        codec.unpack_buffer().fill(0xee);
        codec.unpack_buffer()[..packed.len()].copy_from_slice(packed);
        codec.decompress(packed.len(), &mut back).then_some(back)
    }

    /// Kinds of pages, by name.
    fn pages(kind: &str, count: usize) -> Vec<Page> {
        let mut noise = Noise(kind.len() as u64);
        let text = include_bytes!("codec.rs");
        let make = |number: usize| {
            let mut page = [0; PAGE];
            for at in (0..PAGE).step_by(8) {
                let word = match kind {
                    "half noise" if at / 512 % 2 == 0 => noise.next(),
                    "half noise" => (number as u64 + 1) * 0x0101_0101,
                    "heap-like" => match at / 8 % 4 {
                        0 => 0x7f3a_1200_0000 + (number * PAGE + at) as u64,
                        1 => 0x7f3a_1200_0000 + (noise.next() >> 40) * 16,
                        2 => noise.next() >> 58,
                        _ => 0,
                    },
                    "noise" => noise.next(),
                    "text" => {
                        let from = (number * 997 + at) % (text.len() - 8);
                        u64::from_le_bytes(std::array::from_fn(|byte| text[from + byte]))
                    }
                    _ => u64::from(noise.next().is_multiple_of(40)),
                };
                page[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            page
        };
        (0..count).map(make).collect()
    }

    const KINDS: [&str; 5] = ["half noise", "text", "heap-like", "sparse", "noise"];

    #[test]
    fn pages_of_every_kind_come_back() {
        let mut codec = Codec::new();
        // More pages than the table's positions go round.
        for kind in KINDS {
            let lens: Vec<_> = pages(kind, 100)
                .iter()
                .map(|page| check(&mut codec, page))
                .collect();
            assert!(
                lens.iter().all(|len| len.is_some() == (kind != "noise")),
                "{kind}"
            );
        }
    }

    #[test]
    fn what_was_packed_elsewhere_is_unpacked() {
        let mut codec = Codec::new();
        let mut packed = [0; 2 * PAGE];
        for page in KINDS.iter().flat_map(|kind| pages(kind, 20)) {
            let len = lz4_flex::block::compress_into(&page, &mut packed).unwrap();
            if len < PAGE {
                assert!(unpack(&mut codec, &packed[..len]).is_some_and(|back| back == page));
            }
        }
    }

    #[test]
    fn a_filled_page_is_its_value() {
        let mut page = [0; PAGE];
        fill(&mut page, 0x0123_4567_89ab_cdef);
        assert_eq!(filled_with(&page), Some(0x0123_4567_89ab_cdef));
        page[4000] ^= 1;
        assert_eq!(filled_with(&page), None);
    }

    /// Pieces to make pages of: copies of what came before, noise, and runs.
    fn pieces() -> impl Strategy<Value = Vec<(u8, usize, usize, u64)>> {
        prop::collection::vec((0u8..3, 1usize..700, 1usize..4096, any::<u64>()), 1..120)
    }

    fn build(pieces: &[(u8, usize, usize, u64)]) -> Page {
        let mut bytes: Vec<u8> = Vec::with_capacity(PAGE);
        let mut noise = Noise(1);
        for &(kind, len, back, seed) in pieces.iter().cycle() {
            noise.0 ^= seed;
            for _ in 0..len.min(PAGE - bytes.len()) {
                bytes.push(match kind {
                    0 if back <= bytes.len() => bytes[bytes.len() - back],
                    1 => noise.next() as u8,
                    _ => seed as u8,
                });
            }
            if bytes.len() == PAGE {
                break;
            }
        }
        bytes.try_into().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn any_page_comes_back(pieces in pieces()) {
            check(&mut Codec::new(), &build(&pieces));
        }

        /// As the other decoder finds, too; and nothing outside the page is written.
        #[test]
        fn a_spoiled_page_is_bytes_or_nothing(
            pieces in pieces(),
            spoils in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut codec = Codec::new();
            let Some(len) = codec.compress(&build(&pieces)) else { return Ok(()) };
            let mut packed = codec.packed(len).to_vec();
            for (at, to) in spoils {
                packed[at.index(len)] = to;
            }
            packed.truncate(len - cut.index(len) % 3);
            let mut guarded = [[0x77; PAGE]; 3];
            codec.unpack_buffer()[..packed.len()].copy_from_slice(&packed);
            let mine = codec.decompress(packed.len(), &mut guarded[1]);
            prop_assert!(guarded[0] == [0x77; PAGE] && guarded[2] == [0x77; PAGE]);
            let mut theirs = [0; PAGE];
            if matches!(lz4_flex::block::decompress_into(&packed, &mut theirs), Ok(PAGE)) && mine {
                prop_assert!(guarded[1] == theirs);
            }
        }

        #[test]
        fn rubbish_is_bytes_or_nothing(rubbish in prop::collection::vec(any::<u8>(), 0..PAGE)) {
            unpack(&mut Codec::new(), &rubbish);
        }
    }

    /// Nanoseconds of this thread's time a page, packed and unpacked, and bytes saved.
    #[test]
    #[ignore = "measures: run it alone, in release, with --nocapture"]
    fn beside_lz4_flex() {
        const COUNT: usize = 512;
        let time = || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
        };
        for kind in KINDS {
            let pages = pages(kind, COUNT);
            let (mut codec, mut theirs) = (Codec::new(), lz4_flex::block::CompressTable::small());
            let mut packed = vec![([0; 2 * PAGE], 0); COUNT];
            let mut back = [0; PAGE];
            let mut times = [const { Vec::new() }; 4];
            let mut bytes = [0; 2];
            for _ in 0..21 {
                let start = time();
                bytes[0] = pages
                    .iter()
                    .map(|page| codec.compress(page).unwrap_or(PAGE))
                    .sum();
                times[0].push(time() - start);
                for (page, (out, len)) in pages.iter().zip(&mut packed) {
                    *len = codec.compress(page).unwrap_or(0);
                    out[..*len].copy_from_slice(codec.packed(*len));
                }
                let start = time();
                for (packed, len) in &packed {
                    codec.unpack_buffer()[..*len].copy_from_slice(&packed[..*len]);
                    std::hint::black_box(codec.decompress(*len, &mut back));
                }
                times[1].push(time() - start);
                let start = time();
                for (page, (out, len)) in pages.iter().zip(&mut packed) {
                    *len =
                        lz4_flex::block::compress_into_with_table(page, out, &mut theirs).unwrap();
                }
                times[2].push(time() - start);
                bytes[1] = packed
                    .iter()
                    .map(|&(_, len)| if len > WORTH_IT { PAGE } else { len })
                    .sum();
                let start = time();
                for (packed, len) in &packed {
                    let _ = lz4_flex::block::decompress_into(&packed[..*len], &mut back);
                    std::hint::black_box(&back);
                }
                times[3].push(time() - start);
            }
            let [pack, unpack, their_pack, their_unpack] = times.map(|mut times| {
                times.sort_by(f64::total_cmp);
                times[times.len() / 2] / COUNT as f64
            });
            let [ratio, their_ratio] =
                bytes.map(|bytes: usize| (COUNT * PAGE) as f64 / bytes as f64);
            println!(
                "{kind:12} {pack:6.0} {unpack:6.0} {ratio:6.2}   lz4_flex {their_pack:6.0} {their_unpack:6.0} {their_ratio:6.2}"
            );
        }
    }
}
