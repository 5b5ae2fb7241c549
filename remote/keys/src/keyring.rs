//! A host's key and the members of its cluster, in a folder.
//!
//! | file | holds |
//! |---|---|
//! | `key` | the key pair, PKCS #8, readable by its owner alone |
//! | `members.toml` | the list of members |
//! | `lock` | held by the process that changes either |
//!
//! [`crate::key_files`] reads and writes them.
//!
//! Rule: where the list cannot be read any more, as a hand that edits it may leave it, the members that it had last
//! stay members, and nothing is written to it.

use crate::fingerprint::Fingerprint;
use crate::host_key::HostKey;
use crate::key_files::{decode, encode, file_error, lock, make_key, read_key, replace};
use crate::keyring_error::KeyringError;
use crate::member_list::MemberList;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A host's key and the members of its cluster.
#[derive(Debug)]
pub struct Keyring {
    folder: PathBuf,
    key: HostKey,
    list: Mutex<Cached>,
}

/// The list as it was read last.
#[derive(Debug, Default)]
struct Cached {
    list: MemberList,
    stamp: Option<Stamp>,
    /// Its file could not be read when it was read last, as a line of the log says.
    is_damaged: bool,
}

/// Tells a file from the one that replaces it.
type Stamp = (u64, i64, i64, u64);

impl Keyring {
    /// This host's folder: under $XDG_STATE_HOME, /var/lib for root, or ~/.local/state.
    ///
    /// # Errors
    /// Where none of these is set.
    pub fn default_folder() -> Result<PathBuf, KeyringError> {
        let absolute = |name| {
            let path = std::env::var_os(name).map(PathBuf::from);
            path.filter(|path| path.is_absolute())
        };
        let own = || match rustix::process::geteuid().is_root() {
            true => Some(PathBuf::from("/var/lib")),
            false => absolute("HOME").map(|home| home.join(".local/state")),
        };
        let state = absolute("XDG_STATE_HOME").or_else(own);
        let state = state.ok_or(KeyringError::NoFolder)?;
        Ok(state.join("selfpage/cluster"))
    }

    /// The keys in a folder. Both are made if they are not there.
    ///
    /// # Errors
    /// [`KeyringError`].
    pub fn open(folder: &Path) -> Result<Self, KeyringError> {
        if let Some(found) = Self::find(folder)? {
            return Ok(found);
        }
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|why| KeyringError::Folder {
            path: folder.to_owned(),
            why,
        })?;
        Self::with_key(folder, make_key(folder)?)
    }

    /// The keys in a folder, if a host has a key there; makes nothing.
    ///
    /// # Errors
    /// [`KeyringError`].
    pub fn find(folder: &Path) -> Result<Option<Self>, KeyringError> {
        let key = read_key(folder)?;
        key.map(|key| Self::with_key(folder, key)).transpose()
    }

    fn with_key(folder: &Path, key: HostKey) -> Result<Self, KeyringError> {
        let this = Self {
            folder: folder.to_owned(),
            key,
            list: Mutex::default(),
        };
        this.members()?;
        Ok(this)
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// This host's key pair.
    pub fn key(&self) -> &HostKey {
        &self.key
    }

    /// This host's key.
    pub fn fingerprint(&self) -> Fingerprint {
        self.key.fingerprint()
    }

    /// The members, as the file has them now. This host is one once it was named.
    ///
    /// # Errors
    /// [`KeyringError`].
    pub fn members(&self) -> Result<MemberList, KeyringError> {
        let mut cached = self.cached();
        self.read(&mut cached)?;
        Ok(cached.list.clone())
    }

    /// Returns true if other hosts than this one are members.
    ///
    /// # Errors
    /// [`KeyringError`].
    pub fn has_others(&self) -> Result<bool, KeyringError> {
        let own = self.fingerprint();
        let members = self.members()?;
        Ok(members.iter().any(|(key, _)| *key != own))
    }

    /// Returns true if a key is a member's now.
    pub fn is_member(&self, key: &Fingerprint) -> bool {
        self.last_read().list.is_member(key)
    }

    /// Returns true if a key was removed.
    pub fn is_removed(&self, key: &Fingerprint) -> bool {
        self.last_read().list.is_removed(key)
    }

    /// The name of a member, or the beginning of its key.
    pub fn name_of(&self, key: &Fingerprint) -> String {
        let cached = self.last_read();
        let name = cached.list.get(key).map(|it| it.name.clone());
        name.unwrap_or_else(|| key.short())
    }

    /// Changes the list, in the file too. Returns what `change` does.
    ///
    /// # Errors
    /// [`KeyringError`]; the list is as it was then.
    pub fn update<R>(&self, change: impl FnOnce(&mut MemberList) -> R) -> Result<R, KeyringError> {
        let _lock = lock(&self.folder)?;
        let before = self.members()?;
        let mut list = before.clone();
        let outcome = change(&mut list);
        if list != before {
            let path = self.folder.join("members.toml");
            let text = encode(&list);
            replace(&path, text.as_bytes(), 0o600).map_err(file_error("write", &path))?;
        }
        Ok(outcome)
    }

    /// Checks that the cluster has not removed this host, as far as this host knows.
    ///
    /// # Errors
    /// [`KeyringError::Removed`], and of the files.
    pub fn check_not_removed(&self) -> Result<(), KeyringError> {
        let own = self.fingerprint();
        match self.members()?.is_removed(&own) {
            true => Err(KeyringError::Removed(own)),
            false => Ok(()),
        }
    }

    /// Returns true if the folder has another key now, or none: this host has left its cluster.
    pub fn has_left(&self) -> bool {
        match read_key(&self.folder) {
            Ok(key) => key.is_none_or(|key| key.fingerprint() != self.fingerprint()),
            // Nothing is known then.
            Err(_) => false,
        }
    }

    /// Says what this host is, to the list.
    ///
    /// # Errors
    /// [`KeyringError`].
    pub fn set_own(&self, name: &str, address: Option<&str>) -> Result<(), KeyringError> {
        self.check_not_removed()?;
        let own = self.fingerprint();
        self.update(|list| {
            let known = list.get(&own).and_then(|it| it.address.clone());
            let address = address.map(str::to_owned).or(known);
            list.set(own, name, address.as_deref());
        })
    }

    /// Deletes a host's key and its members: it is in no cluster then, and has another key next time.
    ///
    /// # Errors
    /// [`KeyringError`].
    pub fn delete(folder: &Path) -> Result<(), KeyringError> {
        let _lock = lock(folder)?;
        for name in ["members.toml", "key"] {
            let path = folder.join(name);
            match fs::remove_file(&path) {
                Err(why) if why.kind() != ErrorKind::NotFound => {
                    return Err(file_error("delete", &path)(why));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The list, read again if the file is another one that can be read.
    fn last_read(&self) -> MutexGuard<'_, Cached> {
        let mut cached = self.cached();
        let was_damaged = cached.is_damaged;
        let outcome = self.read(&mut cached);
        cached.is_damaged = outcome.is_err();
        if let (Err(why), false) = (outcome, was_damaged) {
            tracing::error!("{why}; until then the members are those it had before");
        }
        cached
    }

    fn cached(&self) -> MutexGuard<'_, Cached> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the list again if the file is another.
    fn read(&self, cached: &mut Cached) -> Result<(), KeyringError> {
        let path = self.folder.join("members.toml");
        let stamp = match fs::metadata(&path) {
            Ok(it) => Some((it.ino(), it.mtime(), it.mtime_nsec(), it.size())),
            Err(why) if why.kind() == ErrorKind::NotFound => None,
            Err(why) => return Err(file_error("read", &path)(why)),
        };
        if stamp != cached.stamp {
            cached.list = match stamp {
                Some(_) => decode(&path)?,
                None => MemberList::default(),
            };
            cached.stamp = stamp;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt;

    fn key(number: u8) -> Fingerprint {
        Fingerprint::of(&[number])
    }

    #[test]
    fn the_key_is_made_on_first_use_and_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("state/selfpage/cluster");
        assert!(Keyring::find(&folder).unwrap().is_none() && !folder.exists());
        let first = Keyring::open(&folder).unwrap().fingerprint();
        assert_eq!(Keyring::open(&folder).unwrap().fingerprint(), first);
        assert_eq!(
            Keyring::find(&folder).unwrap().unwrap().fingerprint(),
            first
        );
        let mode = fs::metadata(folder.join("key")).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let keyring = Keyring::open(&folder).unwrap();
        assert!(!keyring.has_left());
        Keyring::delete(&folder).unwrap();
        assert!(keyring.has_left());
        assert_ne!(Keyring::open(&folder).unwrap().fingerprint(), first);
        assert!(keyring.has_left());
    }

    #[test]
    fn processes_that_begin_at_once_make_one_key() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Keyring::open(folder.path()).unwrap().fingerprint();
        let keys = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            let joined = threads.into_iter().map(|thread| thread.join().unwrap());
            joined.collect::<BTreeSet<_>>()
        });
        assert_eq!(keys.len(), 1);
    }

    #[test]
    fn a_change_by_one_process_is_seen_by_another() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = [(); 2].map(|()| Keyring::open(folder.path()).unwrap());
        one.update(|list| list.set(key(1), "near", Some("10.0.0.1:1")))
            .unwrap();
        assert!(other.is_member(&key(1)));
        other.update(|list| list.remove(key(1))).unwrap();
        assert!(!one.is_member(&key(1)));
        assert!(one.members().unwrap().is_removed(&key(1)));
        assert_eq!(one.members().unwrap(), other.members().unwrap());
    }

    #[test]
    fn the_members_stay_members_while_their_list_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let keyring = Keyring::open(folder.path()).unwrap();
        let add = |number| keyring.update(|list| list.set(key(number), "near", None));
        add(1).unwrap();
        assert!(keyring.is_member(&key(1)));
        let path = folder.path().join("members.toml");
        let whole = fs::read(&path).unwrap();
        fs::write(&path, "x = [").unwrap();
        assert!(keyring.is_member(&key(1)) && !keyring.is_removed(&key(1)));
        assert!(!keyring.is_member(&key(2)) && keyring.members().is_err());
        let why = add(2).unwrap_err();
        assert!(matches!(why, KeyringError::Damaged { .. }), "{why}");
        assert_eq!(fs::read(&path).unwrap(), b"x = [");
        fs::write(&path, &whole).unwrap();
        add(2).unwrap();
        assert!(keyring.is_member(&key(1)) && keyring.is_member(&key(2)));
    }

    #[test]
    fn changes_by_many_at_once_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        let add = |number: u8| {
            let keyring = Keyring::open(folder.path()).unwrap();
            keyring
                .update(|list| list.set(key(number), "host", None))
                .unwrap();
        };
        std::thread::scope(|scope| {
            (0..16).for_each(|number| drop(scope.spawn(move || add(number))))
        });
        let keyring = Keyring::open(folder.path()).unwrap();
        assert_eq!(keyring.members().unwrap().len(), 16);
    }

    #[test]
    fn a_key_that_others_could_read_and_files_that_are_damaged_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        Keyring::open(folder.path()).unwrap();
        let path = folder.path().join("key");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let why = Keyring::open(folder.path()).unwrap_err();
        assert!(
            matches!(why, KeyringError::Exposed { mode: 0o644, .. }),
            "{why}"
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let why = Keyring::open(folder.path()).unwrap_err();
        assert!(matches!(why, KeyringError::Foreign { .. }), "{why}");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(folder.path().join("members.toml"), "x = [").unwrap();
        let why = Keyring::open(folder.path()).unwrap_err();
        assert!(matches!(why, KeyringError::Damaged { .. }), "{why}");
        fs::remove_file(folder.path().join("members.toml")).unwrap();
        fs::write(&path, "no key").unwrap();
        let why = Keyring::open(folder.path()).unwrap_err();
        assert!(matches!(why, KeyringError::Damaged { .. }), "{why}");
    }
}
