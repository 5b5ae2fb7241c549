//! A store's configuration line: `ram:256MiB+disk:/var/tmp,size=2GiB`.

use crate::config_error::ConfigError;
use crate::io::fault_injection::FaultPlan;
use std::path::PathBuf;
use std::str::FromStr;
use wired::Bytes;

/// Smallest arena of compressed RAM: fewer bytes leave no room to compact in.
pub const MIN_RAM: u64 = 256 << 10;
/// Smallest swap file: one run of pages.
pub const MIN_DISK: u64 = 128 << 10;
/// Largest size of either: a sanity limit; also, a location would no longer fit its word.
pub const MAX_SIZE: u64 = 1 << 42;

/// Longest URL of an object store: the line is in the store's tables, which have room for it.
pub const MAX_URL: usize = 1024;

/// The tiers of a store and their sizes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StoreConfig {
    /// Bytes of compressed RAM.
    pub ram: Option<u64>,
    /// The swap file.
    pub disk: Option<DiskConfig>,
}

/// The owner of a store's disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskLocation {
    /// The store's own: the name of a file to make; it is unlinked once it is open.
    File(PathBuf),
    /// The memory of paging servers, reached through IO channels to a remote client.
    Remote,
    /// Objects of the store at a URL, reached through IO channels to an object client.
    Objects(String),
    /// The daemon's, reached through IO channels that a [`crate::DiskTransport`] opens. It has a
    /// swap file for the store already; a configuration line cannot request one.
    System,
}

/// A swap file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskConfig {
    /// Its location.
    pub place: DiskLocation,
    /// Bytes, allocated when the store is made; the maximum where the file grows; what may be
    /// at paging servers.
    pub size: u64,
    /// The file that has the pages which no paging server or object store takes, where the place is one of these.
    pub last_resort: Option<Box<DiskConfig>>,
    /// Writes all of it when the store is made: making the store then takes longer (the time to
    /// write `size` bytes), and filling it for the first time is faster, where a file system tracks
    /// what was ever written (ext4, XFS): 1.6 GB/s against 0.5 here on ext4 (medians of three runs
    /// of the example `pages`).
    pub written: bool,
    /// Allocates only the first part when the store is made, and more ahead of need: see
    /// [`crate::SharedStore::grow_ahead`].
    pub grows: bool,
    /// Faults to inject, for tests: see [`FaultPlan`].
    pub inject: Option<FaultPlan>,
}

impl DiskConfig {
    /// A swap file of `size` bytes at `path`.
    pub fn new(path: impl Into<PathBuf>, size: u64) -> Self {
        Self {
            place: DiskLocation::File(path.into()),
            size,
            last_resort: None,
            written: false,
            grows: false,
            inject: None,
        }
    }

    /// `size` bytes of paging servers.
    pub fn remote(size: u64) -> Self {
        Self {
            place: DiskLocation::Remote,
            ..Self::new("", size)
        }
    }

    /// `size` bytes of pages in the objects of the store at a URL.
    pub fn objects(url: impl Into<String>, size: u64) -> Self {
        Self {
            place: DiskLocation::Objects(url.into()),
            ..Self::new("", size)
        }
    }

    /// The swap file, also that behind remote memory or an object store.
    pub fn file(&self) -> Option<&Self> {
        match self.place {
            DiskLocation::File(_) => Some(self),
            DiskLocation::Remote | DiskLocation::Objects(_) | DiskLocation::System => {
                self.last_resort.as_deref()
            }
        }
    }

    /// Bytes of all pages: where a file is behind another place, as many as the larger of the two has room for.
    pub fn space(&self) -> u64 {
        self.size
            .max(self.last_resort.as_ref().map_or(0, |file| file.size))
    }

    /// A disk of the daemon's that gives the store `size` bytes.
    pub fn by_daemon(size: u64) -> Self {
        Self {
            place: DiskLocation::System,
            ..Self::new("", size)
        }
    }
}

impl StoreConfig {
    /// Returns true if the store makes a swap file: its descriptor is then the last of the store's.
    pub fn has_file(&self) -> bool {
        (self.disk.as_ref()).is_some_and(|disk| matches!(disk.place, DiskLocation::File(_)))
    }

    /// Returns true if pages go to paging servers.
    pub fn is_remote(&self) -> bool {
        let disk = self.disk.as_ref();
        disk.is_some_and(|disk| disk.place == DiskLocation::Remote)
    }

    /// The URL of the object store that pages go to.
    pub fn object_store(&self) -> Option<&str> {
        match &self.disk.as_ref()?.place {
            DiskLocation::Objects(url) => Some(url),
            _ => None,
        }
    }

    /// Checks that the sizes are possible.
    pub fn check(&self) -> Result<(), ConfigError> {
        let bound = |what, asked: u64, least, most| {
            if asked < least {
                return Err(ConfigError::TooSmall { what, asked, least });
            }
            if asked > most {
                return Err(ConfigError::TooLarge {
                    what,
                    asked: Bytes(asked).to_string(),
                    most,
                });
            }
            Ok(())
        };
        if let Some(ram) = self.ram {
            bound("compressed RAM", ram, MIN_RAM, MAX_SIZE)?;
        }
        if let Some(disk) = &self.disk {
            if matches!(&disk.place, DiskLocation::File(path) if path.as_os_str().is_empty()) {
                return Err(ConfigError::NoPath);
            }
            let what = match disk.place {
                DiskLocation::Remote => "remote memory",
                DiskLocation::Objects(_) => "the pages of an object store",
                _ => "a swap file",
            };
            bound(what, disk.size, MIN_DISK, MAX_SIZE)?;
            if let Some(file) = &disk.last_resort {
                bound("a swap file", file.size, MIN_DISK, MAX_SIZE)?;
            }
        }
        if self.ram.is_none() && self.disk.is_none() {
            return Err(ConfigError::Nothing(String::new()));
        }
        Ok(())
    }
}

impl FromStr for StoreConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let mut config = StoreConfig::default();
        for part in split_tiers(text) {
            if let Some(size) = part.strip_prefix("ram:") {
                let size = size.parse::<Bytes>()?.0;
                if config.ram.replace(size).is_some() {
                    return Err(ConfigError::Twice("ram:"));
                }
            } else if let Some(rest) = part.strip_prefix("disk:") {
                set_disk(&mut config, parse_disk(rest)?, "disk:")?;
            } else if let Some(size) = part.strip_prefix("remote:") {
                let remote = DiskConfig::remote(size.parse::<Bytes>()?.0);
                set_disk(&mut config, remote, "remote:")?;
            } else if let Some(rest) = part.strip_prefix("opendal:") {
                set_disk(&mut config, parse_objects(rest)?, "opendal:")?;
            } else {
                return Err(ConfigError::Nothing(text.to_owned()));
            }
        }
        config.check()?;
        Ok(config)
    }
}

/// Sets what is behind compressed RAM.
fn set_disk(
    config: &mut StoreConfig,
    disk: DiskConfig,
    name: &'static str,
) -> Result<(), ConfigError> {
    use DiskLocation::{File, Objects, Remote, System};
    let set = match config.disk.take() {
        None => disk,
        Some(before) => match (&before.place, &disk.place) {
            (Remote, Objects(_)) | (Objects(_), Remote) => return Err(ConfigError::BesideObjects),
            (Remote | Objects(_), File(_)) if before.last_resort.is_none() => {
                if disk.grows || disk.inject.is_some() {
                    return Err(ConfigError::NotBehindRemote);
                }
                DiskConfig {
                    last_resort: Some(Box::new(disk)),
                    ..before
                }
            }
            (File(_), Remote | Objects(_)) => return Err(ConfigError::DiskBeforeRemote),
            (File(_) | Remote | Objects(_) | System, _) => return Err(ConfigError::Twice(name)),
        },
    };
    config.disk = Some(set);
    Ok(())
}

/// Splits at each `+` that a tier's name follows: a path may contain a `+`.
fn split_tiers(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let here = rest?;
        let cut = [
            here.find("+ram:"),
            here.find("+disk:"),
            here.find("+remote:"),
            here.find("+opendal:"),
        ]
        .into_iter()
        .flatten()
        .min();
        match cut {
            Some(at) => {
                rest = Some(&here[at + 1..]);
                Some(&here[..at])
            }
            None => {
                rest = None;
                Some(here)
            }
        }
    })
}

fn parse_disk(text: &str) -> Result<DiskConfig, ConfigError> {
    let mut inner = text.split(',');
    let path = PathBuf::from(inner.next().unwrap_or_default());
    // An option stands in its place where it is left out.
    if path.as_os_str().is_empty() || text.starts_with("size=") {
        return Err(ConfigError::NoPath);
    }
    let mut size = None;
    let mut written = false;
    let mut grows = false;
    let mut inject = FaultPlan::default();
    for option in inner {
        if let Some(text) = option.strip_prefix("size=") {
            if size.replace(text.parse::<Bytes>()?.0).is_some() {
                return Err(ConfigError::TwoSizes);
            }
        } else if option == "written" {
            written = true;
        } else if option == "grow" {
            grows = true;
        } else if !inject.parse_option(option) {
            return Err(ConfigError::Option(option.to_owned()));
        }
    }
    let size = size.ok_or_else(|| match path.to_str() {
        Some(text) if text.parse::<Bytes>().is_ok() => ConfigError::SizeForPath(text.to_owned()),
        _ => ConfigError::NoSize(path.clone()),
    })?;
    if written && grows {
        return Err(ConfigError::Both);
    }
    let inject = (inject != FaultPlan::default()).then_some(inject);
    Ok(DiskConfig {
        written,
        grows,
        inject,
        ..DiskConfig::new(path, size)
    })
}

/// A URL may contain commas and `=`: the last `,size=` is the size.
fn parse_objects(text: &str) -> Result<DiskConfig, ConfigError> {
    let without_size =
        || ConfigError::NoObjectSize(text.split('?').next().unwrap_or("").to_owned());
    let (url, size) = text.rsplit_once(",size=").ok_or_else(without_size)?;
    if url.len() > MAX_URL {
        return Err(ConfigError::LongUrl(url.len()));
    }
    Ok(DiskConfig::objects(url, size.parse::<Bytes>()?.0))
}

impl std::fmt::Display for StoreConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(ram) = self.ram {
            write!(f, "ram:{}", Bytes(ram))?;
        }
        if let Some(disk) = &self.disk {
            let join = if self.ram.is_some() { "+" } else { "" };
            let size = Bytes(disk.size);
            match &disk.place {
                DiskLocation::File(path) => write!(f, "{join}disk:{},size={size}", path.display())?,
                DiskLocation::Remote => write!(f, "{join}remote:{size}")?,
                DiskLocation::Objects(url) => write!(f, "{join}opendal:{url},size={size}")?,
                DiskLocation::System => write!(f, "{join}disk by the system,size={size}")?,
            }
            if disk.written {
                write!(f, ",written")?;
            }
            if disk.grows {
                write!(f, ",grow")?;
            }
            if let Some(inject) = disk.inject {
                write!(f, "{inject}")?;
            }
            if let Some(disk) = disk.last_resort.as_deref().cloned() {
                let disk = Some(disk);
                write!(f, "+{}", StoreConfig { ram: None, disk })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
