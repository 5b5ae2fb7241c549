//! Datagrams that a member of the cluster has signed.
//!
//! A datagram has no handshake before it, so each has the public key of its sender, and a signature by it. Rule: one
//! that no member has signed is none. A copy of an earlier one is as good as it: what is sent so has to be such that a
//! copy changes nothing.

use crate::fingerprint::Fingerprint;
use crate::host_key::HostKey;
use crate::keyring::Keyring;
use ring::signature::{ED25519, UnparsedPublicKey};

/// What the public key's bytes come after in a SubjectPublicKeyInfo of Ed25519 (RFC 8410, section 4).
const KEY_PREFIX: [u8; 12] = [48, 42, 48, 5, 6, 3, 43, 101, 112, 3, 33, 0];
/// Bytes of a public key and of a signature.
const KEY: usize = 32;
const SIGNATURE: usize = 64;

/// Bytes that a signed datagram has beside its message.
pub const SIGNED_OVERHEAD: usize = KEY + SIGNATURE;

/// What is signed for one purpose is signed for no other.
const PURPOSE: &[u8] = b"selfpage datagram\0";

/// A message with the host's signature. `None` where the key signs nothing: one that was decoded does.
pub fn sign(key: &HostKey, message: &[u8]) -> Option<Vec<u8>> {
    let signature = key.sign(&[PURPOSE, message].concat())?;
    let public = key.public_key().strip_prefix(&KEY_PREFIX[..])?;
    Some([public, &signature, message].concat())
}

/// The message of a datagram, if a member has signed it.
pub fn verify<'a>(members: &Keyring, datagram: &'a [u8]) -> Option<&'a [u8]> {
    let datagram = SignedDatagram::split(datagram)?;
    // First, since it is the cheaper check.
    if !members.is_member(&datagram.signer()) {
        return None;
    }
    datagram.verify()
}

/// The key that has signed a datagram, if it is no member's: a stranger's, or one that this host has not learned of.
pub fn unknown_signer(members: &Keyring, datagram: &[u8]) -> Option<Fingerprint> {
    let datagram = SignedDatagram::split(datagram)?;
    let key = datagram.signer();
    // A host whose key was removed may go on sending; no list has it as a member.
    if members.is_member(&key) || members.is_removed(&key) {
        return None;
    }
    datagram.verify().map(|_| key)
}

/// The parts of a datagram.
struct SignedDatagram<'a> {
    public: &'a [u8; KEY],
    signature: &'a [u8; SIGNATURE],
    message: &'a [u8],
}

impl<'a> SignedDatagram<'a> {
    fn split(datagram: &'a [u8]) -> Option<Self> {
        let (public, rest) = datagram.split_first_chunk()?;
        let (signature, message) = rest.split_first_chunk()?;
        Some(Self {
            public,
            signature,
            message,
        })
    }

    fn signer(&self) -> Fingerprint {
        Fingerprint::of(&[&KEY_PREFIX[..], self.public].concat())
    }

    /// The message, if the key that it comes with has signed it.
    fn verify(&self) -> Option<&'a [u8]> {
        let signed = [PURPOSE, self.message].concat();
        let key = UnparsedPublicKey::new(&ED25519, self.public);
        let verified = key.verify(&signed, self.signature);
        verified.ok().map(|()| self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_a_member_has_signed_it_and_no_other_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let open = |name| Keyring::open(&folder.path().join(name)).unwrap();
        let (member, stranger) = (open("member"), open("stranger"));
        member.set_own("member", None).unwrap();
        let signed = sign(member.key(), b"here").unwrap();
        assert_eq!(signed.len(), SIGNED_OVERHEAD + 4);
        assert_eq!(verify(&member, &signed), Some(&b"here"[..]));
        assert_eq!(verify(&stranger, &signed), None);
        assert_eq!(
            unknown_signer(&stranger, &signed),
            Some(member.fingerprint())
        );
        assert_eq!(unknown_signer(&member, &signed), None);
        assert_eq!(
            verify(&member, &sign(stranger.key(), b"here").unwrap()),
            None
        );
        for at in 0..signed.len() {
            let mut changed = signed.clone();
            changed[at] ^= 1;
            assert_eq!(verify(&member, &changed), None, "byte {at}");
            assert_eq!(verify(&member, &signed[..at]), None, "{at} bytes");
            for forged in [&changed[..], &signed[..at]] {
                assert_eq!(unknown_signer(&stranger, forged), None, "byte {at}");
            }
        }
        member
            .update(|list| list.remove(member.fingerprint()))
            .unwrap();
        assert_eq!(verify(&member, &signed), None, "the key was removed");
    }
}
