//! The files of a keyring. Each is replaced as a whole, so that a reader or a crash meets an old one or a
//! new one.

use crate::fingerprint::Fingerprint;
use crate::host_key::HostKey;
use crate::keyring_error::KeyringError;
use crate::member_list::{Member, MemberList};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The list as a file has it.
#[derive(Serialize, Deserialize, Default)]
struct MembersFile {
    #[serde(default)]
    removed: BTreeSet<Fingerprint>,
    #[serde(default)]
    member: Vec<FileMember>,
}

#[derive(Serialize, Deserialize)]
struct FileMember {
    key: Fingerprint,
    #[serde(flatten)]
    member: Member,
}

pub(crate) fn file_error(what: &'static str, path: &Path) -> impl Fn(io::Error) -> KeyringError {
    let path = path.to_owned();
    move |why| KeyringError::File {
        what,
        path: path.clone(),
        why,
    }
}

/// The key of a folder, if it has one.
pub(crate) fn read_key(folder: &Path) -> Result<Option<HostKey>, KeyringError> {
    let path = folder.join("key");
    let found = match fs::metadata(&path) {
        Ok(found) => found,
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(file_error("read", &path)(why)),
    };
    let mode = found.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyringError::Exposed { path, mode });
    }
    let own = rustix::process::geteuid().as_raw();
    let there = fs::metadata(folder).map_err(file_error("read", folder))?;
    for (path, found) in [(path.clone(), found), (folder.to_owned(), there)] {
        let owner = found.uid();
        let is_others = ![own, 0].contains(&owner) || found.mode() & 0o022 != 0;
        if is_others {
            return Err(KeyringError::Foreign { path, owner });
        }
    }
    let bytes = fs::read(&path).map_err(file_error("read", &path))?;
    let key = HostKey::decode(&bytes);
    key.map(Some).map_err(|why| KeyringError::Damaged {
        path,
        there: why.to_string(),
    })
}

/// Makes a key, unless another process does first.
pub(crate) fn make_key(folder: &Path) -> Result<HostKey, KeyringError> {
    let _lock = lock(folder)?;
    if let Some(key) = read_key(folder)? {
        return Ok(key);
    }
    let path = folder.join("key");
    let damaged = |why: crate::host_key::InvalidKey| KeyringError::Damaged {
        path: path.clone(),
        there: why.to_string(),
    };
    let bytes = HostKey::generate().map_err(damaged)?;
    let key = HostKey::decode(&bytes).map_err(damaged)?;
    replace(&path, &bytes, 0o600).map_err(file_error("write", &path))?;
    Ok(key)
}

/// Held until it is dropped.
pub(crate) fn lock(folder: &Path) -> Result<File, KeyringError> {
    let path = folder.join("lock");
    let open = || {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    };
    open().map_err(file_error("lock", &path))
}

/// Replaces a file as a whole. The folder's lock is held.
pub(crate) fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(why) if why.kind() != ErrorKind::NotFound => return Err(why),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    File::open(folder)?.sync_all()
}

pub(crate) fn encode(list: &MemberList) -> String {
    let member = |(key, member): (&Fingerprint, &Member)| FileMember {
        key: *key,
        member: member.clone(),
    };
    let file = MembersFile {
        removed: list.removed().clone(),
        member: list.iter().map(member).collect(),
    };
    // Texts and numbers: nothing of it is without a form in TOML.
    toml::to_string(&file).unwrap_or_default()
}

pub(crate) fn decode(path: &Path) -> Result<MemberList, KeyringError> {
    let damaged = |why: &dyn std::fmt::Display| KeyringError::Damaged {
        path: path.to_owned(),
        there: format!("no list of members ({why})"),
    };
    let text = fs::read_to_string(path).map_err(file_error("read", path))?;
    let file: MembersFile = toml::from_str(&text).map_err(|why| damaged(&why.message()))?;
    let members = file.member.into_iter().map(|it| (it.key, it.member));
    Ok(MemberList::from_parts(members, file.removed))
}
