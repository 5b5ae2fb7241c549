//! The URL of a store, as OpenDAL has it.

use crate::error::OpenError;
use crate::option_names::option_names;
use crate::redis_store::{self, RedisConnections};
use opendal::services::{FsConfig, RedisConfig, S3Config};
use opendal::{Configurator, Operator, OperatorUri};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// The variables that have Redis's credentials: `redis-cli` has the first of them.
const REDIS_PASSWORD: &str = "REDISCLI_AUTH";
const REDIS_USER: &str = "REDIS_USERNAME";

/// Options that are secrets, by all names that OpenDAL has for them.
const SECRETS: [&str; 12] = [
    "password",
    "username",
    "access_key_id",
    "aws_access_key_id",
    "secret_access_key",
    "aws_secret_access_key",
    "session_token",
    "aws_session_token",
    "aws_token",
    "token",
    "server_side_encryption_customer_key",
    "aws_sse_customer_key_base64",
];

/// Where a store is. What is displayed of it has no options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectUrl {
    text: String,
    kind: StoreKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreKind {
    Folder,
    Redis,
    S3,
}

impl StoreKind {
    /// The names of its options.
    fn option_names(self) -> &'static [&'static str] {
        match self {
            Self::Folder => option_names::<FsConfig>(),
            Self::Redis => option_names::<RedisConfig>(),
            Self::S3 => option_names::<S3Config>(),
        }
    }

    /// Where the store takes its credentials from.
    fn credentials(self) -> &'static str {
        match self {
            Self::Folder => "a folder has none",
            Self::Redis => "set REDISCLI_AUTH, and REDIS_USERNAME where the user has a name",
            Self::S3 => {
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile or a role"
            }
        }
    }
}

impl FromStr for ObjectUrl {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            // The rest may have a password.
            let scheme = text.split_once(':').map_or(text, |(scheme, _)| scheme);
            return Err(OpenError::Url(without_options(scheme)));
        };
        let kind = match scheme {
            "fs" | "file" => StoreKind::Folder,
            "redis" | "rediss" => StoreKind::Redis,
            "s3" => StoreKind::S3,
            _ => return Err(OpenError::Scheme(scheme.to_owned())),
        };
        // What is before an `@` may be a password: no error repeats it.
        let parse_error = |_| OpenError::Url(format!("{scheme}://..."));
        let parsed = OperatorUri::new(text, []).map_err(parse_error)?;
        if parsed.username().is_some() || parsed.password().is_some() {
            let what = "USER:PASSWORD@".to_owned();
            return Err(OpenError::Secret(what, kind.credentials()));
        }
        if let Some(secret) = secret_option(&parsed) {
            return Err(OpenError::Secret(secret, kind.credentials()));
        }
        let names = kind.option_names();
        let mut options = parsed.options().keys();
        if let Some(option) = options.find(|option| !names.contains(&option.as_str())) {
            return Err(OpenError::NoOption {
                url: without_options(text),
                option: option.clone(),
                names: described(names),
            });
        }
        let has_place = match kind {
            StoreKind::Folder if parsed.name().is_some() => {
                return Err(OpenError::Folder(without_options(rest)));
            }
            StoreKind::Folder => parsed.root().is_some(),
            StoreKind::Redis | StoreKind::S3 => parsed.name().is_some(),
        };
        match has_place {
            true => Ok(Self {
                text: text.to_owned(),
                kind,
            }),
            false => Err(OpenError::Url(without_options(text))),
        }
    }
}

/// The names of options in words, without those that no URL may have and second names of others.
fn described(names: &[&str]) -> String {
    let names = names.iter().copied();
    let public = names.filter(|name| !SECRETS.contains(name) && !name.starts_with("aws_"));
    Vec::from_iter(public).join(", ")
}

/// The option that is a secret, or has one in an address.
fn secret_option(url: &OperatorUri) -> Option<String> {
    let mut options = url.options().iter();
    options.find_map(|(name, value)| match name.as_str() {
        name if SECRETS.contains(&name) => Some(name.to_owned()),
        name if name.contains("endpoint") && value.contains('@') => {
            Some(format!("USER:PASSWORD@ in {name}"))
        }
        _ => None,
    })
}

fn without_options(text: &str) -> String {
    text.split(['?', '#']).next().unwrap_or_default().to_owned()
}

impl fmt::Display for ObjectUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_options(&self.text))
    }
}

impl ObjectUrl {
    /// The URL with its options, which are no secrets.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Where the store's credentials come from.
    pub fn credentials(&self) -> &'static str {
        self.kind.credentials()
    }

    /// The folder that the store is, where it is one.
    pub fn folder(&self) -> Option<PathBuf> {
        let url = OperatorUri::new(&self.text, []).ok()?;
        let root = url.root().filter(|_| self.is_folder())?;
        Some(Path::new("/").join(root))
    }

    /// Checks that the folder is there, where the store is one.
    ///
    /// # Errors
    /// [`OpenError::NoFolder`].
    pub fn check_folder(&self) -> Result<(), OpenError> {
        match self.folder().filter(|folder| !folder.is_dir()) {
            Some(folder) => Err(OpenError::NoFolder {
                url: self.to_string(),
                folder,
            }),
            None => Ok(()),
        }
    }

    pub(crate) fn is_folder(&self) -> bool {
        self.kind == StoreKind::Folder
    }

    /// The operator of the store, and the connections of a Redis.
    pub(crate) fn operator(&self) -> Result<(Operator, Option<Arc<RedisConnections>>), OpenError> {
        self.check_folder()?;
        // Fails where a provider is installed already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        opendal::install_default();
        crate::upload::install();
        let credentials = match self.kind {
            StoreKind::Redis => [("password", REDIS_PASSWORD), ("username", REDIS_USER)]
                .into_iter()
                .filter_map(|(option, name)| Some((option.to_owned(), std::env::var(name).ok()?)))
                .collect(),
            StoreKind::Folder | StoreKind::S3 => Vec::new(),
        };
        let wrong = |why: opendal::Error| OpenError::Options {
            url: self.to_string(),
            why: why.to_string(),
        };
        let uri = OperatorUri::new(&self.with_scheme(), credentials).map_err(wrong)?;
        if self.kind == StoreKind::Redis {
            let config = RedisConfig::from_uri(&uri).map_err(wrong)?;
            if config.cluster_endpoints.is_none() {
                let (operator, connections) = redis_store::operator(&config).map_err(wrong)?;
                return Ok((operator, Some(connections)));
            }
        }
        Ok((Operator::from_uri(uri).map_err(wrong)?, None))
    }

    /// OpenDAL knows the encrypted form by an option only.
    fn with_scheme(&self) -> String {
        match self.text.strip_prefix("rediss://") {
            Some(rest) => {
                let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
                let host = place.split('/').next().unwrap_or_default();
                format!("redis://{place}?endpoint=rediss://{host}&{options}")
            }
            None => self.text.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_its_options_is_displayed() {
        for (text, shown) in [
            ("fs:///var/tmp/pages", "fs:///var/tmp/pages"),
            ("redis://127.0.0.1:6379/2", "redis://127.0.0.1:6379/2"),
            ("s3://bucket/a?region=eu-west-1", "s3://bucket/a"),
        ] {
            let url: ObjectUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(url.as_str(), text);
            url.operator().unwrap();
        }
    }

    #[test]
    fn an_error_names_the_mistake_and_what_to_write() {
        for (text, part) in [
            ("/var/tmp", "fs:///FOLDER"),
            ("tape://x", "no object store has URLs of tape://"),
            ("fs://var/tmp", "three slashes"),
            ("fs:///", "fs:///FOLDER"),
            ("redis:///", "redis://HOST:PORT"),
            ("s3:///folder", "s3://BUCKET"),
            ("s3://b?regoin=x", "no option `regoin`"),
            ("s3://b?regoin=x", " region,"),
            ("redis://h?dbb=3", " db,"),
            ("fs:///f?rooot=/g", "no option `rooot`"),
            ("redis://me:pass@host", "REDISCLI_AUTH"),
            ("redis:/me:pass@host", "redis"),
            ("s3://b?secret_access_key=pass", "AWS_SECRET_ACCESS_KEY"),
            ("s3://b?AWS_Secret_Access_Key=pass", "AWS_SECRET_ACCESS_KEY"),
            ("s3://b?token=pass", "(token)"),
            (
                "s3://b?endpoint_url=https://me:pass@host",
                "in endpoint_url",
            ),
            (
                "s3://b?endpoint=https%3A%2F%2Fme:pass%40host",
                "in endpoint",
            ),
            (
                "redis://h?cluster_endpoints=redis://h,redis://:pass@h",
                "REDISCLI_AUTH",
            ),
        ] {
            let error = text.parse::<ObjectUrl>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
            assert!(!error.contains("pass"), "{error}");
        }
    }
}
