//! Configurations of rustls that accept the keys of a cluster and no others.
//!
//! They work with any user of rustls, such as tokio-rustls; [`peer_fingerprint`] is the peer's
//! identity then. [`crate::Handshake`] is for sockets whose records are ours.

use crate::fingerprint::Fingerprint;
use crate::host_key::HostKey;
use crate::keyring::Keyring;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::crypto::ring::{default_provider, kx_group};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, CommonState, DigitallySignedStruct, DistinguishedName, Error,
    OtherError, PeerIncompatible, ServerConfig, SignatureScheme,
};
use std::sync::Arc;

/// What a link is for. Both ends name it in the handshake (ALPN), and it fails where they differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Frames of pages and control messages.
    Pages,
    /// Control messages of a broker.
    Broker,
    /// Lists of members.
    Members,
    /// An invitation.
    Join,
}

impl Protocol {
    const ALL: [Self; 4] = [Self::Pages, Self::Broker, Self::Members, Self::Join];

    /// Its name in the handshake.
    pub fn name(self) -> &'static [u8] {
        match self {
            Self::Pages => b"selfpage-pages/1",
            Self::Broker => b"selfpage-broker/1",
            Self::Members => b"selfpage-members/1",
            Self::Join => b"selfpage-join/1",
        }
    }

    /// The protocol that a handshake has chosen.
    pub fn of(connection: &CommonState) -> Option<Self> {
        let name = connection.alpn_protocol()?;
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}

/// Whose keys are accepted.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Those of the cluster's members, as the list has them at the time.
    Members(Arc<Keyring>),
    /// This one.
    Only(Fingerprint),
    /// Any: the peer has to prove something else.
    Any,
}

impl Trust {
    fn includes(&self, key: &Fingerprint) -> bool {
        match self {
            Self::Members(keyring) => keyring.is_member(key),
            Self::Only(one) => one == key,
            Self::Any => true,
        }
    }
}

/// The configuration of the end that connects.
///
/// # Errors
/// None in practice: rustls refuses combinations that are not used here.
pub fn client_config(
    key: &HostKey,
    trust: Trust,
    protocol: Protocol,
) -> Result<Arc<ClientConfig>, Error> {
    let own = AlwaysResolvesClientRawPublicKeys::new(key.certified());
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(KeyVerifier { trust }))
        .with_client_cert_resolver(Arc::new(own));
    config.alpn_protocols = vec![protocol.name().to_vec()];
    config.enable_secret_extraction = true;
    // A name in the clear says nothing that the key does not.
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// The configuration of the end that accepts.
///
/// # Errors
/// As of [`client_config`].
pub fn server_config(
    key: &HostKey,
    trust: Trust,
    protocols: &[Protocol],
) -> Result<Arc<ServerConfig>, Error> {
    let own = AlwaysResolvesServerRawPublicKeys::new(key.certified());
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(KeyVerifier { trust }))
        .with_cert_resolver(Arc::new(own));
    config.alpn_protocols = protocols.iter().map(|it| it.name().to_vec()).collect();
    config.enable_secret_extraction = true;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The name that a client gives to rustls, which has to have one.
pub fn server_name() -> ServerName<'static> {
    // A valid name, as the test of the handshake shows.
    ServerName::try_from("selfpage")
        .unwrap_or(ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into()))
}

/// The key that the peer has proved to have, once the handshake is over.
pub fn peer_fingerprint(connection: &CommonState) -> Option<Fingerprint> {
    let [key] = connection.peer_certificates()? else {
        return None;
    };
    Some(Fingerprint::of(key))
}

/// One suite, since both ends are ours: every processor that selfpage runs on has instructions for it.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![kx_group::X25519],
        ..default_provider()
    })
}

/// The peer's key is not one that is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key {} is no member's", .0.short())]
pub(crate) struct NotAccepted(pub Fingerprint);

/// Accepts keys by the list. Nothing else of a certificate is looked at.
#[derive(Debug)]
struct KeyVerifier {
    trust: Trust,
}

impl KeyVerifier {
    fn verify(&self, key: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), Error> {
        let key = Fingerprint::of(key);
        match others.is_empty() && self.trust.includes(&key) {
            true => Ok(()),
            // The alert for it is certificate_unknown.
            false => Err(Error::InvalidCertificate(CertificateError::Other(
                OtherError(Arc::new(NotAccepted(key))),
            ))),
        }
    }

    fn verify_signature(
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        let algorithms = default_provider().signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signed, &algorithms)
    }
}

const SCHEMES: [SignatureScheme; 1] = [SignatureScheme::ED25519];

impl ServerCertVerifier for KeyVerifier {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(key, others)
            .map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::verify_signature(message, key, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        SCHEMES.to_vec()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for KeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(key, others)
            .map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::verify_signature(message, key, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        SCHEMES.to_vec()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
