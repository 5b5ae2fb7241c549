//! Encryption of pages before they leave this host: a server stores what it cannot read.
//!
//! *Adaptive Remote Paging for Mobile Computers* trusts its servers; its clients meet new ones wherever they go. Each
//! client, so each tree of processes, has a key of its own (AES-256-GCM), which is made when it starts, is in its state
//! (`client_state`), on no disk and on no link, and ends with it, as its pages do.
//!
//! | | of a page |
//! |---|---|
//! | nonce, 12 bytes | the version of its write, and the low half of its number |
//! | additional data | its number, so that no page passes for another |
//! | tag, 16 bytes | stays here, with the page's record: what a server stores is a page |
//!
//! Rule: no two writes of a space have one version, and the pages of one write have different numbers, so a nonce is
//! used for one plaintext. A write that is sent again, or to another server, is the same ciphertext; if its program
//! has changed the page meanwhile, nothing of it is sent (`page_records`).

use remote_policy::identity::Version;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use std::io;

/// Bytes of a tag.
pub const TAG: usize = 16;
/// Bytes of a key.
pub const KEY: usize = 32;

/// The key of one client.
pub struct PageCipher(LessSafeKey);

impl PageCipher {
    /// A new key.
    pub fn new_key() -> io::Result<[u8; KEY]> {
        let mut key = [0; KEY];
        SystemRandom::new().fill(&mut key).map_err(failed)?;
        Ok(key)
    }

    /// A cipher with a key.
    pub fn with_key(key: &[u8; KEY]) -> io::Result<Self> {
        let key = UnboundKey::new(&AES_256_GCM, key).map_err(failed)?;
        Ok(Self(LessSafeKey::new(key)))
    }

    /// A cipher with a new key.
    #[cfg(test)]
    pub fn new() -> io::Result<Self> {
        Self::with_key(&Self::new_key()?)
    }

    /// Encrypts a page in place. Returns its tag.
    pub fn seal(&self, page: u64, version: Version, contents: &mut [u8]) -> [u8; TAG] {
        let aad = Aad::from(page.to_le_bytes());
        let nonce = nonce(page, version);
        match self.0.seal_in_place_separate_tag(nonce, aad, contents) {
            Ok(tag) => tag.as_ref().try_into().unwrap_or_default(),
            // It fails for inputs of many GiB only. Nothing leaves in the clear, and the page does not open.
            Err(_) => {
                contents.fill(0);
                [0; TAG]
            }
        }
    }

    /// Decrypts a page in place. Returns false if it is not the one that has the tag.
    pub fn open(&self, page: u64, version: Version, tag: [u8; TAG], contents: &mut [u8]) -> bool {
        let aad = Aad::from(page.to_le_bytes());
        let (nonce, tag) = (nonce(page, version), Tag::from(tag));
        let opened = self
            .0
            .open_in_place_separate_tag(nonce, aad, tag, contents, 0..);
        opened.is_ok()
    }
}

fn failed(_: ring::error::Unspecified) -> io::Error {
    io::Error::other("the kernel gives no random bytes for a key")
}

fn nonce(page: u64, version: Version) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&version.0.to_le_bytes());
    bytes[8..].copy_from_slice(&(page as u32).to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wired::PAGE;

    #[test]
    fn a_page_opens_as_itself_alone() {
        let cipher = PageCipher::new().unwrap();
        let mut sealed = [7; PAGE];
        let tag = cipher.seal(3, Version(5), &mut sealed);
        assert_ne!(sealed, [7; PAGE]);
        let opens = |page, version, change: usize| {
            let mut contents = sealed;
            contents[change] ^= u8::from(change > 0);
            let is_open = cipher.open(page, Version(version), tag, &mut contents);
            is_open && contents == [7; PAGE]
        };
        assert!(opens(3, 5, 0));
        assert!(!opens(3, 5, 9), "changed");
        assert!(!opens(3, 4, 0), "of another write");
        assert!(!opens(3 + (1 << 32), 5, 0), "another page");
        let other = PageCipher::new().unwrap();
        assert!(!other.open(3, Version(5), tag, &mut sealed), "another key");
    }
}
