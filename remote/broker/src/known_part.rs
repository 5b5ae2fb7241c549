//! The part of a membership's datagram that is about members that are known.

use crate::protocol::Member;
use foca::{Codec, Header, PostcardCodec};

/// The datagram without what it has of unknown members. `None` where its sender is one, or it is no datagram.
///
/// It is a header, the number of updates in two bytes, and as many updates.
pub fn known_part(datagram: &[u8], is_known: impl Fn(&Member) -> bool) -> Option<Vec<u8>> {
    let mut rest = datagram;
    let header: Header<Member> = PostcardCodec.decode_header(&mut rest).ok()?;
    if !is_known(&header.src) {
        return None;
    }
    let mut part = datagram[..datagram.len() - rest.len()].to_vec();
    let Some((count, mut rest)) = rest.split_first_chunk::<2>() else {
        return Some(part);
    };
    let (mut known, mut updates) = (0u16, Vec::<u8>::new());
    for _ in 0..u16::from_be_bytes(*count) {
        let before = rest;
        let update: foca::Member<Member> = PostcardCodec.decode_member(&mut rest).ok()?;
        if is_known(update.id()) {
            known += 1;
            updates.extend(&before[..before.len() - rest.len()]);
        }
    }
    part.extend(known.to_be_bytes());
    part.extend(updates);
    Some(part)
}
