//! The hand-off message: which memory a client hands over, as a JSON array of mappings.
//!
//! The public format of microVM page-fault handlers: `base_host_virt_addr`, `size`, `offset` (into
//! the snapshot) and `page_size` in bytes, of each mapping. Older peers send `page_size_kib`, also in
//! bytes, or no page size. Rule: a mapping is believed only within what the snapshot covers, so a
//! peer makes the manager allocate no more than the operator's own file justifies.

use serde::Deserialize;
use wired::{Bytes, PAGE};

/// Mappings of one client at most.
pub const MAX_MAPPINGS: usize = 64;
/// Bytes of a message at most.
pub const MAX_MESSAGE: usize = 64 << 10;
/// Bytes of a huge page.
pub const HUGE: usize = 2 << 20;
/// The end of user addresses on x86-64, with five-level page tables.
const ADDRESS_END: u64 = 1 << 56;

/// One mapping of a client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First byte in the client's address space.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
    /// Where its contents begin in the snapshot, and in the memfd where there is one.
    pub offset: u64,
}

/// A client's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handoff {
    /// Its mappings, by address; they overlap neither in addresses nor in offsets.
    pub mappings: Vec<Mapping>,
    /// Bytes of a page: 4 KiB or 2 MiB.
    pub page_size: usize,
}

/// Why a hand-off is refused.
#[derive(Debug, thiserror::Error)]
pub enum HandoffError {
    /// Not the format.
    #[error("the hand-off is no JSON array of mappings: {0}")]
    Json(#[from] serde_json::Error),
    /// Longer than any array of mappings.
    #[error("the hand-off has more than {MAX_MESSAGE} bytes")]
    TooLong,
    /// Too few or too many mappings.
    #[error("the hand-off has {0} mappings; 1 to {MAX_MAPPINGS} are possible")]
    Count(usize),
    /// A page size that is not served.
    #[error("page size {0} of mapping {1}; expected 4096 or 2097152 bytes, the same for all")]
    PageSize(u64, usize),
    /// Addresses, sizes or offsets that are no whole pages.
    #[error("mapping {0}: address, size and offset must be whole pages, the size not 0")]
    Alignment(usize),
    /// Beyond user addresses.
    #[error("mapping {0} ends beyond the end of addresses")]
    Address(usize),
    /// Two mappings that share addresses or contents.
    #[error("mappings overlap in {0}")]
    Overlap(&'static str),
    /// Beyond the snapshot's end.
    #[error("mapping {mapping} ends at {} of a snapshot of {}", Bytes(*end), Bytes(*snapshot))]
    BeyondSnapshot {
        /// Its number.
        mapping: usize,
        /// Its end.
        end: u64,
        /// Bytes of the snapshot.
        snapshot: u64,
    },
}

/// A mapping as it is sent.
#[derive(Deserialize)]
struct Sent {
    base_host_virt_addr: u64,
    size: u64,
    #[serde(default)]
    offset: u64,
    page_size: Option<u64>,
    page_size_kib: Option<u64>,
}

impl Sent {
    fn page_size(&self) -> u64 {
        self.page_size.or(self.page_size_kib).unwrap_or(PAGE as u64)
    }
}

impl Handoff {
    /// Parses what has arrived so far. `Ok(None)`: the array is not complete yet. `snapshot` is the
    /// number of bytes that offsets may cover.
    pub fn parse(bytes: &[u8], snapshot: u64) -> Result<Option<Self>, HandoffError> {
        if bytes.len() > MAX_MESSAGE {
            return Err(HandoffError::TooLong);
        }
        let mut arrays = serde_json::Deserializer::from_slice(bytes).into_iter::<Vec<Sent>>();
        match arrays.next() {
            None => Ok(None),
            Some(Err(why)) if why.is_eof() => Ok(None),
            Some(Err(why)) => Err(why.into()),
            Some(Ok(sent)) => Self::check(&sent, snapshot).map(Some),
        }
    }

    fn check(sent: &[Sent], snapshot: u64) -> Result<Self, HandoffError> {
        if sent.is_empty() || sent.len() > MAX_MAPPINGS {
            return Err(HandoffError::Count(sent.len()));
        }
        let page_size = sent[0].page_size();
        let mut mappings = Vec::with_capacity(sent.len());
        for (number, it) in sent.iter().enumerate() {
            let size = it.page_size();
            if size != page_size || ![PAGE as u64, HUGE as u64].contains(&size) {
                return Err(HandoffError::PageSize(size, number));
            }
            let parts = [it.base_host_virt_addr, it.size, it.offset];
            if it.size == 0 || parts.iter().any(|part| part % page_size != 0) {
                return Err(HandoffError::Alignment(number));
            }
            let end = it.base_host_virt_addr.checked_add(it.size);
            if end.is_none_or(|end| end > ADDRESS_END) || it.base_host_virt_addr == 0 {
                return Err(HandoffError::Address(number));
            }
            let end = it.offset.saturating_add(it.size);
            if end > snapshot {
                return Err(HandoffError::BeyondSnapshot {
                    mapping: number,
                    end,
                    snapshot,
                });
            }
            mappings.push(Mapping {
                addr: it.base_host_virt_addr as usize,
                len: it.size as usize,
                offset: it.offset,
            });
        }
        mappings.sort_by_key(|it| it.offset);
        if (mappings.windows(2)).any(|two| two[0].offset + two[0].len as u64 > two[1].offset) {
            return Err(HandoffError::Overlap("their offsets"));
        }
        mappings.sort_by_key(|it| it.addr);
        if (mappings.windows(2)).any(|two| two[0].addr + two[0].len > two[1].addr) {
            return Err(HandoffError::Overlap("their addresses"));
        }
        Ok(Self {
            mappings,
            page_size: page_size as usize,
        })
    }

    /// Bytes of all mappings.
    pub fn len(&self) -> usize {
        self.mappings.iter().map(|it| it.len).sum()
    }

    /// Returns true if there is no mapping, which no parsed hand-off has.
    pub fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SNAPSHOT: u64 = 1 << 30;

    fn parse(text: &str) -> Result<Option<Handoff>, HandoffError> {
        Handoff::parse(text.as_bytes(), SNAPSHOT)
    }

    #[test]
    fn a_hand_off_is_parsed_with_every_way_to_give_the_page_size() {
        for size in [
            r#","page_size":4096"#,
            r#","page_size_kib":4096"#,
            r#","page_size":4096,"page_size_kib":4096,"new_field":{}"#,
            "",
        ] {
            let text =
                format!(r#"[{{"base_host_virt_addr":8388608,"size":8192,"offset":4096{size}}}]"#);
            let handoff = parse(&text).unwrap().unwrap();
            let mapping = Mapping {
                addr: 8 << 20,
                len: 8192,
                offset: 4096,
            };
            assert_eq!(handoff.mappings, [mapping]);
            assert_eq!(handoff.page_size, PAGE);
        }
    }

    #[test]
    fn half_a_message_is_incomplete_at_every_byte() {
        let text = r#"[{"base_host_virt_addr":8388608,"size":8192,"offset":0,"page_size":4096}]"#;
        for end in 0..text.len() {
            assert!(matches!(parse(&text[..end]), Ok(None)), "{}", &text[..end]);
        }
        assert!(parse(text).unwrap().is_some());
    }

    #[test]
    fn lies_are_refused() {
        let one = |addr: u64, size: u64, offset: u64, page: u64| {
            format!(
                r#"{{"base_host_virt_addr":{addr},"size":{size},"offset":{offset},"page_size":{page}}}"#
            )
        };
        for (text, why) in [
            ("[]".to_owned(), "0 mappings"),
            ("{}".to_owned(), "no JSON array"),
            ("hello".to_owned(), "no JSON array"),
            (format!("[{}]", one(8192, 100, 0, 4096)), "whole pages"),
            (format!("[{}]", one(8192, 0, 0, 4096)), "whole pages"),
            (format!("[{}]", one(0, 4096, 0, 4096)), "end of addresses"),
            (format!("[{}]", one(4096, 4096, 0, 8192)), "page size"),
            (
                format!("[{}]", one(4096, 2 << 30, 0, 4096)),
                "of a snapshot",
            ),
            (
                format!("[{}]", one(4096, 4096, u64::MAX - 4095, 4096)),
                "of a snapshot",
            ),
            (
                format!("[{}]", one(u64::MAX - 4095, 8192, 0, 4096)),
                "end of addresses",
            ),
            (
                format!(
                    "[{},{}]",
                    one(8192, 8192, 0, 4096),
                    one(12288, 4096, 8192, 4096)
                ),
                "their addresses",
            ),
            (
                format!(
                    "[{},{}]",
                    one(8192, 8192, 0, 4096),
                    one(65536, 4096, 4096, 4096)
                ),
                "their offsets",
            ),
            (
                format!(
                    "[{},{}]",
                    one(8192, 4096, 0, 4096),
                    one(2 << 20, 2 << 20, 2 << 20, 2 << 20)
                ),
                "page size",
            ),
        ] {
            let refused = parse(&text).expect_err(&text).to_string();
            assert!(refused.contains(why), "{text}: {refused}");
        }
        let many = vec![one(4096, 4096, 0, 4096); MAX_MAPPINGS + 1].join(",");
        assert!(matches!(
            parse(&format!("[{many}]")),
            Err(HandoffError::Count(_))
        ));
        let long = format!("[{}", " ".repeat(MAX_MESSAGE));
        assert!(matches!(parse(&long), Err(HandoffError::TooLong)));
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_parser(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Handoff::parse(&bytes, SNAPSHOT);
        }

        #[test]
        fn what_is_accepted_is_disjoint_and_within_the_snapshot(
            sent in prop::collection::vec((0u64..40, 0u64..12, 0u64..40), 1..6),
            snapshot in 0u64..60,
        ) {
            let page = PAGE as u64;
            let text: Vec<String> = sent.iter().map(|(addr, size, offset)| format!(
                r#"{{"base_host_virt_addr":{},"size":{},"offset":{}}}"#,
                addr * page, size * page, offset * page
            )).collect();
            let text = format!("[{}]", text.join(","));
            if let Ok(Some(handoff)) = Handoff::parse(text.as_bytes(), snapshot * page) {
                prop_assert_eq!(handoff.mappings.len(), sent.len());
                for (number, a) in handoff.mappings.iter().enumerate() {
                    prop_assert!(a.len > 0 && a.addr > 0);
                    prop_assert!(a.offset + a.len as u64 <= snapshot * page);
                    for b in &handoff.mappings[number + 1..] {
                        prop_assert!(a.addr + a.len <= b.addr || b.addr + b.len <= a.addr);
                        let ends = (a.offset + a.len as u64, b.offset + b.len as u64);
                        prop_assert!(ends.0 <= b.offset || ends.1 <= a.offset);
                    }
                }
            }
        }
    }
}
