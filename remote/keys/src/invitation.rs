//! What one host gives another, by a way that people trust, to become a member.

use crate::fingerprint::Fingerprint;
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// A secret that is proved once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub(crate) [u8; 16]);

impl Secret {
    /// A new one. `None` where the kernel gives no random bytes.
    pub fn generate() -> Option<Self> {
        let mut bytes = [0; 16];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(Self(bytes))
    }

    /// Compares in a time that does not depend on where they differ.
    fn is(&self, other: &Self) -> bool {
        blake3::hash(&self.0) == blake3::hash(&other.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Where the inviting host listens, its key, and a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// Addresses of the inviting host.
    pub addresses: Vec<SocketAddr>,
    /// Its key.
    pub inviter: Fingerprint,
    /// The secret.
    pub secret: Secret,
}

impl fmt::Display for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, address) in self.addresses.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{address}")?;
        }
        let secret = u128::from_be_bytes(self.secret.0);
        write!(f, "/{}/{secret:032x}", self.inviter)
    }
}

/// A text that is no invitation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid invitation: {0}; expected ADDRESS:PORT/KEY/SECRET, as `selfpage cluster invite` prints it"
)]
pub struct InvalidInvitation(&'static str);

impl FromStr for Invitation {
    type Err = InvalidInvitation;
    fn from_str(text: &str) -> Result<Self, InvalidInvitation> {
        let parts: Vec<_> = text.trim().split('/').collect();
        let [addresses, inviter, secret] = parts[..] else {
            return Err(InvalidInvitation("it has not three parts"));
        };
        let addresses: Result<Vec<SocketAddr>, _> = addresses.split(',').map(str::parse).collect();
        let addresses = addresses.map_err(|_| InvalidInvitation("an address is not one"))?;
        let inviter = inviter.parse();
        let inviter = inviter.map_err(|_| InvalidInvitation("the key is not one"))?;
        let is_hex = secret.len() == 32 && secret.bytes().all(|b| b.is_ascii_hexdigit());
        let number = u128::from_str_radix(secret, 16).ok().filter(|_| is_hex);
        let number = number.ok_or(InvalidInvitation("the secret is cut or changed"))?;
        Ok(Self {
            addresses,
            inviter,
            secret: Secret(number.to_be_bytes()),
        })
    }
}

/// Why a secret is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvitationError {
    /// It is another.
    #[error("the secret of the invitation is wrong: copy the invitation again, all of it")]
    Wrong,
    /// It was used.
    #[error("the invitation was used: run `selfpage cluster invite` again, once for each host")]
    Used,
    /// Its time is over.
    #[error("the invitation has expired: run `selfpage cluster invite` again")]
    Expired,
}

/// An invitation, as its host keeps it.
#[derive(Debug)]
pub struct OpenInvitation {
    secret: Secret,
    until: Instant,
    used_by: Option<Fingerprint>,
}

impl OpenInvitation {
    /// Of a secret, for a time.
    pub fn new(secret: Secret, now: Instant, life: Duration) -> Self {
        Self {
            secret,
            until: now + life,
            used_by: None,
        }
    }

    /// When it expires.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// The key that has used it.
    pub fn used_by(&self) -> Option<Fingerprint> {
        self.used_by
    }

    /// Uses it for a key, if the secret is the right one. The same key may do so again: its host may not have learned
    /// that it did.
    ///
    /// # Errors
    /// [`InvitationError`].
    pub fn redeem(
        &mut self,
        secret: &Secret,
        key: Fingerprint,
        now: Instant,
    ) -> Result<(), InvitationError> {
        if !self.secret.is(secret) {
            return Err(InvitationError::Wrong);
        }
        if self.used_by.is_some_and(|by| by != key) {
            return Err(InvitationError::Used);
        }
        if now >= self.until {
            return Err(InvitationError::Expired);
        }
        self.used_by = Some(key);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_is_what_its_text_parses_to() {
        let invitation = Invitation {
            addresses: vec![
                ([10, 0, 0, 1], 4764).into(),
                "[fd00::1]:4764".parse().unwrap(),
            ],
            inviter: Fingerprint::of(b"key"),
            secret: Secret::generate().unwrap(),
        };
        let text = invitation.to_string();
        assert_eq!(text.parse(), Ok(invitation.clone()));
        assert_eq!(format!(" {text}\n").parse(), Ok(invitation));
        for cut in 0..text.len() {
            assert!(
                text[..cut].parse::<Invitation>().is_err(),
                "{}",
                &text[..cut]
            );
        }
    }

    #[test]
    fn an_invitation_is_used_by_one_key_and_in_time_with_its_own_secret() {
        let [secret, other] = [(); 2].map(|()| Secret::generate().unwrap());
        let [key, stranger] = [b"key", b"new"].map(|key| Fingerprint::of(key));
        let (now, life) = (Instant::now(), Duration::from_secs(60));
        let mut open = OpenInvitation::new(secret, now, life);
        assert_eq!(open.redeem(&other, key, now), Err(InvitationError::Wrong));
        assert_eq!(
            open.redeem(&secret, key, now + life),
            Err(InvitationError::Expired)
        );
        assert_eq!(open.redeem(&secret, key, now), Ok(()));
        assert_eq!(
            open.redeem(&secret, stranger, now),
            Err(InvitationError::Used)
        );
        assert_eq!(open.redeem(&secret, key, now), Ok(()));
    }
}
