//! Objects of a store that is named by a URL: a folder, Redis, S3.
//!
//! [OpenDAL](https://opendal.apache.org) speaks to the stores, and its URLs name them. This crate adds what pages and
//! snapshots need of them: errors that say what is supported and how it is written, one bound on the time that an
//! operation takes, retries within it, and threads of its own for tokio.
//!
//! Rule: a secret is never part of a URL. A command line is readable by all users of a machine, and a URL is logged; so
//! the stores take their credentials from the environment, and a URL that has one is refused.

mod attempts;
mod error;
mod folder;
mod option_names;
mod path;
mod redis_store;
mod upload;
mod url;
mod version;

pub use error::{ObjectError, OpenError};
pub use path::ObjectPath;
pub use url::ObjectUrl;
pub use version::{ObjectVersion, VersionError};

use folder::FolderWriter;
use opendal::layers::TimeoutLayer;
use opendal::{Buffer, Operator};
use redis_store::{Lane, RedisConnections};
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::sleep;
use upload::UploadedBytes;

/// How long one attempt may take before another is made; of a write, how long its connection may carry nothing.
const ATTEMPT: Duration = Duration::from_secs(10);
/// How long the first attempt of a read may take, from its request to its last byte; each further one twice as long. A
/// connection that is silent, or sends a byte now and then, holds up no page for longer where others answer.
const READ_ATTEMPT: Duration = Duration::from_secs(2);
/// Objects that are deleted within the time of one operation: stores that have no request for many take each by itself.
const DELETED_AT_ONCE: usize = 256;
/// Threads for the store's connections, beside those of the program.
const THREADS: usize = 2;
/// Most threads that wait for a folder's files, and those of them that may write.
const FILE_THREADS: usize = 16;
const WRITE_THREADS: usize = FILE_THREADS / 2;
/// The stack of a thread: it may be locked in RAM.
const STACK: usize = 512 << 10;

/// The threads of a store. One of them may be the last owner, and one may wait for a folder that is gone: their end is
/// not waited for.
struct Threads(Option<Runtime>);

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// How an object was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// By one attempt.
    Once,
    /// After another attempt, which the store may carry out later still.
    Again,
}

/// A store of objects. Its clones share its connections and threads.
#[derive(Clone)]
pub struct ObjectStore {
    url: ObjectUrl,
    operator: Operator,
    /// The same for writes, which no time bounds while their connection takes their bytes.
    writer: Operator,
    /// Writes of a folder.
    folder: Option<FolderWriter>,
    /// Connections to a Redis.
    redis: Option<Arc<RedisConnections>>,
    runtime: Handle,
    _threads: Arc<Threads>,
    /// How long an operation may take, with all its attempts.
    patience: Duration,
}

impl ObjectStore {
    /// The store at a URL, of which nothing is asked yet. Operations end after `patience`.
    ///
    /// # Errors
    /// [`OpenError`]: the URL's options do not fit its store, or the kernel has no threads.
    pub fn open(url: &ObjectUrl, patience: Duration) -> Result<Self, OpenError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(FILE_THREADS)
            .thread_stack_size(STACK)
            .thread_name("selfpage-object")
            .enable_all()
            .build()
            .map_err(OpenError::Threads)?;
        let handle = runtime.handle().clone();
        Self::over(url, patience, &handle, Some(runtime))
    }

    /// The store, by the threads of `runtime`, which it ends where it owns them.
    fn over(
        url: &ObjectUrl,
        patience: Duration,
        runtime: &Handle,
        threads: Option<Runtime>,
    ) -> Result<Self, OpenError> {
        let attempts = TimeoutLayer::new()
            .with_timeout(ATTEMPT)
            .with_io_timeout(ATTEMPT);
        let entered = runtime.enter();
        let (operator, redis) = url.operator()?;
        drop(entered);
        let writer = operator.clone();
        // A Redis's attempts end by what its connections carry.
        let operator = match redis {
            Some(_) => operator,
            None => operator.layer(attempts),
        };
        let root = operator.info().root();
        let folder = || FolderWriter::new(&root, WRITE_THREADS);
        Ok(Self {
            url: url.clone(),
            folder: url.is_folder().then(folder),
            operator,
            writer,
            redis,
            runtime: runtime.clone(),
            _threads: Arc::new(Threads(threads)),
            patience,
        })
    }

    /// The same store, whose operations end after another time.
    #[must_use]
    pub fn with_patience(&self, patience: Duration) -> Self {
        Self {
            patience,
            ..self.clone()
        }
    }

    /// Where it is, without its options.
    pub fn url(&self) -> &ObjectUrl {
        &self.url
    }

    /// Runs an operation to its end. Not for a thread of the store's own.
    pub fn wait<T>(&self, operation: impl Future<Output = T>) -> T {
        self.runtime.block_on(operation)
    }

    /// Waits, in an operation that runs beside the caller.
    pub async fn pause(&self, time: Duration) {
        sleep(time).await;
    }

    /// Runs an operation beside the caller.
    pub fn spawn(&self, operation: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(operation));
    }

    /// Bytes of an object.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn size(&self, name: &str) -> Result<u64, ObjectError> {
        let stat = || self.operator.stat(name);
        let metadata = self.within("size", name, stat).await?;
        Ok(metadata.content_length())
    }

    /// A range of an object's bytes, all of it.
    ///
    /// # Errors
    /// [`ObjectError`], also where the object ends before the range does.
    pub async fn read(&self, name: &str, range: Range<u64>) -> Result<Buffer, ObjectError> {
        self.read_matching(name, range, None).await
    }

    /// Likewise, of the version with an entity tag, where one is named.
    async fn read_matching(
        &self,
        name: &str,
        range: Range<u64>,
        tag: Option<&str>,
    ) -> Result<Buffer, ObjectError> {
        let expected = range.end.saturating_sub(range.start);
        let read = || {
            let read = self.operator.read_with(name).range(range.clone());
            match tag {
                Some(tag) => read.if_match(tag),
                None => read,
            }
        };
        let carried = || self.carried(Lane::Reads);
        let bytes = self
            .within_attempts("read", name, READ_ATTEMPT, carried, read)
            .await?;
        match bytes.len() as u64 == expected {
            true => Ok(bytes),
            false => Err(self.error("read", name).ends(expected, bytes.len() as u64)),
        }
    }

    /// Writes an object, whole.
    ///
    /// # Errors
    /// [`ObjectError`]: the object may be there, or a part of it, in a store that shows parts.
    pub async fn put(&self, name: &str, bytes: impl Into<Buffer>) -> Result<Written, ObjectError> {
        let bytes = bytes.into();
        let (mut attempts, uploaded) = (0, UploadedBytes::default());
        let write = || {
            attempts += 1;
            let write = async {
                match &self.folder {
                    Some(folder) => folder.put(name, bytes.clone()).await,
                    None => self.writer.write(name, bytes.clone()).await.map(drop),
                }
            };
            uploaded.count_in(write)
        };
        let most = match &self.folder {
            // A write that is given up ends with its file.
            Some(_) => self.patience,
            None => ATTEMPT,
        };
        let carried = || self.carried(Lane::Others) + uploaded.get();
        self.within_attempts("write", name, most, carried, write)
            .await?;
        match attempts > 1 && self.may_write_late() {
            true => Ok(Written::Again),
            false => Ok(Written::Once),
        }
    }

    /// Returns true if the store may carry out an attempt that was given up. A folder does not.
    pub fn may_write_late(&self) -> bool {
        self.folder.is_none()
    }

    /// Deletes an object. One that is not there is deleted.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn delete(&self, name: &str) -> Result<(), ObjectError> {
        let delete = || self.operator.delete(name);
        self.within("delete", name, delete).await
    }

    /// Deletes objects, many by one request where the store permits it. The bound of time is for each
    /// `DELETED_AT_ONCE` of them, so any number is deleted at a store that works.
    ///
    /// # Errors
    /// [`ObjectError`] of one that stays, which others may, too: those of which it was the first are tried each by
    /// itself.
    pub async fn delete_all(&self, names: &[String]) -> Result<(), ObjectError> {
        let mut outcome = Ok(());
        for names in names.chunks(DELETED_AT_ONCE) {
            let delete = || self.operator.delete_iter(names.to_vec());
            let Err(why) = self.within("delete", &names[0], delete).await else {
                continue;
            };
            if why.is_late() {
                // So would each of the others be.
                return Err(why);
            }
            for name in names {
                outcome = self.delete(name).await.and(outcome);
            }
        }
        outcome
    }

    /// The names that begin with a prefix, of a folder (which ends with `/`) with those below it.
    ///
    /// # Errors
    /// [`ObjectError`]: Redis has no list.
    pub async fn list(&self, prefix: &str) -> Result<Vec<String>, ObjectError> {
        let list = || self.operator.list_with(prefix).recursive(true);
        let entries = self.within("list", prefix, list).await?;
        let objects = entries
            .into_iter()
            .filter(|entry| entry.metadata().is_file());
        Ok(objects.map(|entry| entry.path().to_owned()).collect())
    }

    /// Writes an object, reads it and deletes it: what is wrong with a URL, a credential or a permission is found
    /// before a page depends on it.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn check(&self, name: &str) -> Result<(), ObjectError> {
        const CONTENTS: &[u8] = b"selfpage";
        self.put(name, CONTENTS).await?;
        let read = self.read(name, 0..CONTENTS.len() as u64).await;
        let deleted = self.delete(name).await;
        let is_same = read?.to_vec() == CONTENTS;
        deleted?;
        match is_same {
            true => Ok(()),
            false => Err(self.error("read", name).differs()),
        }
    }

    fn error(&self, operation: &'static str, name: &str) -> error::Context {
        error::Context {
            operation,
            object: name.to_owned(),
            store: self.url.to_string(),
        }
    }
}
