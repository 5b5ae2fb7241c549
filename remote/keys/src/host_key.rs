//! The key pair of a host.

use crate::fingerprint::Fingerprint;
use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use std::fmt;
use std::sync::Arc;

/// An Ed25519 key pair.
#[derive(Clone)]
pub struct HostKey {
    certified: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
}

/// Bytes that are no key pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no Ed25519 key pair in PKCS #8")]
pub struct InvalidKey;

impl HostKey {
    /// A new key pair, as PKCS #8.
    ///
    /// # Errors
    /// Where the kernel gives no random bytes.
    pub fn generate() -> Result<Vec<u8>, InvalidKey> {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        made.map(|key| key.as_ref().to_vec())
            .map_err(|_| InvalidKey)
    }

    /// The key pair in PKCS #8 bytes.
    ///
    /// # Errors
    /// Where there is none.
    pub fn decode(pkcs8: &[u8]) -> Result<Self, InvalidKey> {
        let der = PrivatePkcs8KeyDer::from(pkcs8);
        let key = any_eddsa_type(&der).map_err(|_| InvalidKey)?;
        let public = key.public_key().ok_or(InvalidKey)?.as_ref().to_vec();
        let fingerprint = Fingerprint::of(&public);
        let certified = CertifiedKey::new(vec![CertificateDer::from(public)], key);
        Ok(Self {
            certified: Arc::new(certified),
            fingerprint,
        })
    }

    /// The name of its public key.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Its public key, as a SubjectPublicKeyInfo.
    pub(crate) fn public_key(&self) -> &[u8] {
        self.certified.cert.first().map_or(&[], |key| key.as_ref())
    }

    /// Its signature of a message.
    pub(crate) fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        let signer = self
            .certified
            .key
            .choose_scheme(&[SignatureScheme::ED25519])?;
        signer.sign(message).ok()
    }

    /// For rustls.
    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }
}

impl fmt::Debug for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostKey({})", self.fingerprint.short())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_pair_is_another_and_decodes_to_itself() {
        let bytes = HostKey::generate().unwrap();
        let [one, again] = [&bytes, &bytes].map(|bytes| HostKey::decode(bytes).unwrap());
        assert_eq!(one.fingerprint(), again.fingerprint());
        let other = HostKey::decode(&HostKey::generate().unwrap()).unwrap();
        assert_ne!(one.fingerprint(), other.fingerprint());
        assert!(HostKey::decode(&bytes[1..]).is_err());
        assert!(HostKey::decode(b"").is_err());
    }
}
