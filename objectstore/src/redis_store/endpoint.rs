//! Where a Redis is, and a stream to it.

use super::byte_count::CountedStream;
use opendal::{Error, ErrorKind};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use socket2::SockRef;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

const DEFAULT_HOST: &str = "127.0.0.1";
const DEFAULT_PORT: u16 = 6379;
/// Bytes that the kernel takes beyond those which are on their way: where it took megabytes, a slow link would look like a
/// silent one.
const UNSENT: u32 = 128 << 10;

/// A stream to a server.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Tcp {
        host: String,
        port: u16,
        is_encrypted: bool,
    },
    Unix(PathBuf),
}

impl Default for Endpoint {
    fn default() -> Self {
        Self::Tcp {
            host: DEFAULT_HOST.to_owned(),
            port: DEFAULT_PORT,
            is_encrypted: false,
        }
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    /// `[SCHEME://]HOST[:PORT]`, or a socket's path; nothing for the server on this machine.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |what| Error::new(ErrorKind::ConfigInvalid, what);
        let (scheme, rest) = text.split_once("://").unwrap_or(("tcp", text));
        let path = rest.find('/').unwrap_or(rest.len());
        let (place, path) = rest.split_at(path);
        let is_encrypted = match scheme {
            "tcp" | "redis" => false,
            "rediss" => true,
            "unix" | "redis+unix" => return Ok(Self::Unix(path.into())),
            _ => return Err(wrong("its endpoint has an unknown scheme")),
        };
        let is_port = |port: &&str| !port.contains(']');
        let (host, port) = match place.rsplit_once(':').filter(|(_, port)| is_port(port)) {
            Some((host, port)) => (host, port.parse()),
            None => (place, Ok(DEFAULT_PORT)),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok(Self::Tcp {
            host: if host.is_empty() { DEFAULT_HOST } else { host }.to_owned(),
            port: port.map_err(|_| wrong("its endpoint has an invalid port"))?,
            is_encrypted,
        })
    }
}

impl Endpoint {
    /// A stream whose bytes are counted as they are sent and received, encrypted or not.
    pub async fn connect(&self, carried: Arc<AtomicU64>) -> io::Result<Box<dyn ByteStream>> {
        let (host, port, is_encrypted) = match self {
            Self::Unix(path) => {
                let stream = UnixStream::connect(path).await?;
                return Ok(Box::new(CountedStream { stream, carried }));
            }
            Self::Tcp {
                host,
                port,
                is_encrypted,
            } => (host, *port, *is_encrypted),
        };
        let stream = TcpStream::connect((host.as_str(), port)).await?;
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT)?;
        let stream = CountedStream { stream, carried };
        if !is_encrypted {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::new(client_config()?));
        Ok(Box::new(connector.connect(name, stream).await?))
    }
}

/// Trusts what the system does.
fn client_config() -> io::Result<ClientConfig> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if let (true, Some(why)) = (roots.is_empty(), found.errors.into_iter().next()) {
        return Err(io::Error::other(why));
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    Ok(config.with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_host_or_the_path_of_a_socket() {
        let tcp = |host: &str, port, is_encrypted| Endpoint::Tcp {
            host: host.to_owned(),
            port,
            is_encrypted,
        };
        for (text, expected) in [
            ("", Endpoint::default()),
            ("tcp://h:1", tcp("h", 1, false)),
            ("h:1", tcp("h", 1, false)),
            ("redis://h", tcp("h", 6379, false)),
            ("redis://h:1/2", tcp("h", 1, false)),
            ("rediss://h:1", tcp("h", 1, true)),
            ("redis://[::1]", tcp("::1", 6379, false)),
            ("redis://[::1]:2", tcp("::1", 2, false)),
            ("unix:///run/redis", Endpoint::Unix("/run/redis".into())),
            ("redis+unix://x/run/a", Endpoint::Unix("/run/a".into())),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap(), expected, "{text}");
        }
        for text in ["tape://h", "redis://h:x", "redis://h:66666"] {
            text.parse::<Endpoint>().unwrap_err();
        }
    }
}
