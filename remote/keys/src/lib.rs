//! Keys of hosts, the members of a cluster, and links between them that no other host reads or changes.
//!
//! *Adaptive Remote Paging for Mobile Computers* (Schilit and Duchamp, 1991) took the hosts of one
//! department on trust. Here a host has a key pair, made on first use, and a list of the keys of the
//! other hosts of its cluster; an invitation puts a host on the list.
//!
//! | module | holds |
//! |---|---|
//! | `fingerprint`, `host_key` | a host's key pair and the name of it |
//! | `member_list` | the keys of a cluster: a set that hosts merge in any order |
//! | `keyring`, `keyring_error`, `key_files` | both, in a folder of this host |
//! | `config` | rustls configurations that accept these keys and no others |
//! | `handshake` | a TLS 1.3 handshake as far as a socket permits, without blocking |
//! | `record`, `keyed_stream` | records after the handshake, sealed and opened in wired memory |
//! | `signed_datagram` | datagrams that a member has signed |
//! | `invitation`, `join`, `sharing` | how hosts become members, and learn of others |
//!
//! Rules:
//! - A key proves which host a peer is; names and addresses are for people, and prove nothing.
//! - Certificates are raw public keys (RFC 7250): no issuer, no date and no name is checked.
//! - After the handshake a stream allocates nothing, but for a change of its keys each 4 million
//!   records.

pub mod config;
mod fingerprint;
mod handshake;
mod host_key;
pub mod invitation;
pub mod join;
mod key_files;
mod keyed_stream;
mod keyring;
mod keyring_error;
mod member_list;
mod record;
pub mod sharing;
pub mod signed_datagram;

pub use config::{Protocol, Trust, client_config, peer_fingerprint, server_config};
pub use fingerprint::Fingerprint;
pub use handshake::{Handshake, HandshakeError, PLAIN_MAGIC, Progress};
pub use host_key::HostKey;
pub use keyed_stream::KeyedStream;
pub use keyring::Keyring;
pub use keyring_error::KeyringError;
pub use member_list::{Ambiguous, MAX_MEMBERS, Member, MemberList};
pub use record::LinkError;
pub use rustls::{ClientConfig, ServerConfig};

/// The port of `selfpage cluster invite`, unless configured otherwise: the one after the paging
/// server's, so that both run on one host.
pub const INVITE_PORT: u16 = 4764;
