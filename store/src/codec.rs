//! Compression of one page: lz4 blocks, with the table and the buffer of the channel.
//!
//! lz4_flex packs, the C library unpacks, each the faster where a page is half noise and half runs:
//! packing takes the one 0.44 us and the other 0.68, unpacking 0.53 and 0.13, since the C library
//! copies long runs by doubling. On programs, text and records they are alike, 3 to 6 us and 0.7 to
//! 1.4. Unpacking was 0.35 us of the 8.4 of a fault (p50 in `selfpage bench paging --arms run-ram
//! --passes random-read`).
//!
//! The packer's table lies in the codec itself (the crate's `alloc` feature is off), so that
//! nothing is allocated. Unpacking checks every bound: the packed bytes lie in memory that other
//! processes write, too.

use lz4_flex::block::{CompressTable, compress_into_with_table};
use lz4_sys::{LZ4_decompress_safe, c_int};
use wired::PAGE;

/// A page that compresses to more than this is kept as it is, or goes to disk. Three quarters of a
/// page.
pub(crate) const MAX_PACKED: usize = PAGE / 4 * 3;

/// The output bound that the crate demands: with less room it returns an error even for a page that
/// compresses well.
const BOUND: usize = lz4_flex::block::get_maximum_output_size(PAGE);

/// Compresses and decompresses.
pub(crate) struct Codec {
    table: CompressTable,
    packed: [u8; BOUND],
    unpack: [u8; PAGE],
}

impl Codec {
    /// A codec without history.
    pub fn new() -> Self {
        Self {
            table: CompressTable::small(),
            packed: [0; BOUND],
            unpack: [0; PAGE],
        }
    }

    /// Compresses a page; its length, or `None` where that exceeds [`MAX_PACKED`].
    pub fn compress(&mut self, page: &[u8; PAGE]) -> Option<usize> {
        let len = compress_into_with_table(page, &mut self.packed, &mut self.table).ok()?;
        (len <= MAX_PACKED).then_some(len)
    }

    /// The page compressed last.
    pub fn packed(&self, len: usize) -> &[u8] {
        &self.packed[..len]
    }

    /// A buffer for the page to decompress: another than the output of compression, because making
    /// room for a compressed page may mean decompressing others.
    pub fn unpack_buffer(&mut self) -> &mut [u8; PAGE] {
        &mut self.unpack
    }

    /// Unpacks the first `len` bytes of [`Codec::unpack_buffer`] into `page`; returns false if they
    /// are no page.
    pub fn decompress(&self, len: usize, page: &mut [u8; PAGE]) -> bool {
        if len == PAGE {
            page.copy_from_slice(&self.unpack);
            return true;
        }
        let packed = &self.unpack[..len];
        // SAFETY: two buffers of the lengths given, whose bounds the library keeps for any input.
        let got = unsafe {
            LZ4_decompress_safe(
                packed.as_ptr().cast(),
                page.as_mut_ptr().cast(),
                len as c_int,
                PAGE as c_int,
            )
        };
        got == PAGE as c_int
    }
}

/// The value that a page repeats, if an entry can hold it: not one that decodes as a location (see
/// [`Location`](crate::location::Location)), or a mover would take it for one.
pub(crate) fn filled_with(page: &[u8; PAGE]) -> Option<u64> {
    let (words, _) = page.as_chunks::<8>();
    let value = u64::from_ne_bytes(words[0]);
    let repeats = words.iter().all(|word| *word == words[0]);
    (repeats && crate::location::Location::decode(value) == crate::location::Location::Nowhere)
        .then_some(value)
}

/// Repeats a value over a page.
pub(crate) fn fill(page: &mut [u8; PAGE], value: u64) {
    let (words, _) = page.as_chunks_mut::<8>();
    words.fill(value.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_survives_compression() {
        let mut codec = Codec::new();
        let page: [u8; PAGE] = std::array::from_fn(|at| (at / 50) as u8);
        let len = codec.compress(&page).unwrap();
        assert!(len < 1000);
        let packed = codec.packed(len).to_vec();
        codec.unpack_buffer()[..len].copy_from_slice(&packed);
        let mut back = [0; PAGE];
        assert!(codec.decompress(len, &mut back));
        assert_eq!(page, back);
    }

    #[test]
    fn noise_is_not_compressed() {
        let mut state = 1u64;
        let page: [u8; PAGE] = std::array::from_fn(|_| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 56) as u8
        });
        assert!(Codec::new().compress(&page).is_none());
    }

    #[test]
    fn arbitrary_bytes_do_not_decompress_to_a_page() {
        let mut codec = Codec::new();
        codec.unpack_buffer().fill(0xff);
        let mut page = [0; PAGE];
        assert!(!codec.decompress(500, &mut page));
    }

    #[test]
    fn a_filled_page_is_its_value() {
        let mut page = [0; PAGE];
        fill(&mut page, 0x0123_4567_89ab_cdef);
        assert_eq!(filled_with(&page), Some(0x0123_4567_89ab_cdef));
        page[4000] ^= 1;
        assert_eq!(filled_with(&page), None);
    }
}
