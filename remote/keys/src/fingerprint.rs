//! The name of a key.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Digits that tell keys of a cluster apart, for people.
const SHORT: usize = 16;

/// The BLAKE3 hash of a public key, as its SubjectPublicKeyInfo has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of a SubjectPublicKeyInfo.
    pub fn of(public_key: &[u8]) -> Self {
        Self(*blake3::hash(public_key).as_bytes())
    }

    /// Its first bytes.
    pub fn head(&self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_be_bytes([a, b, c, d])
    }

    /// Its first digits, for people.
    pub fn short(&self) -> String {
        self.to_string()[..SHORT].to_owned()
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({})", self.short())
    }
}

/// A text that is no fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid fingerprint {0}: expected 64 hexadecimal digits")]
pub struct InvalidFingerprint(String);

impl FromStr for Fingerprint {
    type Err = InvalidFingerprint;
    fn from_str(text: &str) -> Result<Self, InvalidFingerprint> {
        let hash = blake3::Hash::from_hex(text);
        let hash = hash.map_err(|_| InvalidFingerprint(text.to_owned()))?;
        Ok(Self(*hash.as_bytes()))
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = InvalidFingerprint;
    fn try_from(text: String) -> Result<Self, InvalidFingerprint> {
        text.parse()
    }
}

impl From<Fingerprint> for String {
    fn from(of: Fingerprint) -> Self {
        of.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_what_its_text_parses_to() {
        let of = Fingerprint::of(b"a key");
        assert_eq!(of.to_string().parse(), Ok(of));
        assert_ne!(of, Fingerprint::of(b"another key"));
        assert!(of.to_string().starts_with(&of.short()));
        for text in ["", "12", &"g".repeat(64)] {
            assert!(text.parse::<Fingerprint>().is_err(), "{text}");
        }
    }
}
