//! One version of an object: what tells it from another that has taken its name.

use crate::{ObjectError, ObjectStore, ObjectUrl, OpenError};
use opendal::Buffer;
use std::ops::Range;
use std::time::Duration;
use tokio::runtime::Builder;

/// What a store says of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    /// Bytes.
    pub size: u64,
    /// The store's name of this version: its entity tag, or the time of its last change. Redis has neither.
    pub tag: String,
    /// Reads can be told to fail where the object has another entity tag.
    can_match: bool,
}

/// Why nothing is known of an object.
#[derive(Debug, thiserror::Error)]
pub enum VersionError {
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store does not have it, or does not say.
    #[error(transparent)]
    Object(Box<ObjectError>),
}

impl ObjectVersion {
    /// Asks a store once, by no thread that stays: for a process that forks afterwards.
    ///
    /// # Errors
    /// [`VersionError`].
    pub fn ask(url: &ObjectUrl, name: &str, patience: Duration) -> Result<Self, VersionError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(OpenError::Threads)?;
        let store = ObjectStore::over(url, patience, runtime.handle(), None)?;
        let version = runtime.block_on(store.version(name));
        version.map_err(|why| VersionError::Object(why.into()))
    }
}

impl ObjectStore {
    /// The version of an object that is there now.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn version(&self, name: &str) -> Result<ObjectVersion, ObjectError> {
        let stat = || self.operator.stat(name);
        let metadata = self.within("find", name, stat).await?;
        let etag = metadata.etag().map(str::to_owned);
        let can_match = self.operator.info().capability().read_with_if_match;
        let changed = || metadata.last_modified().map(|time| time.to_string());
        Ok(ObjectVersion {
            size: metadata.content_length(),
            can_match: can_match && etag.is_some(),
            tag: etag.or_else(changed).unwrap_or_default(),
        })
    }

    /// A range of a version's bytes, all of it.
    ///
    /// # Errors
    /// [`ObjectError`], also where another version has the name, as far as the store can tell.
    pub async fn read_version(
        &self,
        name: &str,
        range: Range<u64>,
        version: &ObjectVersion,
    ) -> Result<Buffer, ObjectError> {
        let tag = version.can_match.then_some(&*version.tag);
        self.read_matching(name, range, tag).await
    }
}
