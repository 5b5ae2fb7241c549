//! Why a store cannot be opened, and why an operation of it fails.

use opendal::ErrorKind;
use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// What is supported, and how it is written.
pub(crate) const FORMS: &str = "expected fs:///FOLDER, redis://HOST:PORT[/DB], or s3://BUCKET[/FOLDER][?region=REGION&endpoint=URL]";

/// Why a URL names no store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It does not parse.
    #[error("invalid URL of an object store {0:?}: {FORMS}")]
    Url(String),
    /// A scheme of no store.
    #[error("no object store has URLs of {0}://: {FORMS}")]
    Scheme(String),
    /// A folder that is not absolute.
    #[error("fs://{0} is no folder from the root: write three slashes, as in fs:///var/tmp/pages")]
    Folder(String),
    /// An option that its store has not.
    #[error("{url} has no option `{option}`: expected one of {names}")]
    NoOption {
        /// The store.
        url: String,
        /// The option.
        option: String,
        /// Those that there are.
        names: String,
    },
    /// A folder that is not there: OpenDAL would make it, on the file system that is in the place of another.
    #[error("{url}: the folder {} is not there: mount its file system, or make it (mkdir -p)", folder.display())]
    NoFolder {
        /// The store.
        url: String,
        /// Its folder.
        folder: PathBuf,
    },
    /// A store where an object was expected.
    #[error("{0} lacks the name of an object after the folder's: s3://BUCKET/FOLDER/NAME")]
    NoObject(String),
    /// A secret where all users of the machine can read it.
    #[error(
        "the URL of an object store has a secret ({0}), which all users of this machine could read: {1}"
    )]
    Secret(String, &'static str),
    /// What OpenDAL finds wrong.
    #[error("{url}: {why}; {FORMS}")]
    Options {
        /// The store.
        url: String,
        /// The mistake.
        why: String,
    },
    /// No threads.
    #[error("cannot start threads for an object store: {0}")]
    Threads(io::Error),
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {} {} at {}: {why}", context.operation, context.object, context.store)]
pub struct ObjectError {
    context: Context,
    why: Cause,
}

#[derive(Debug)]
pub(crate) struct Context {
    pub operation: &'static str,
    pub object: String,
    pub store: String,
}

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error("{}", described(.0))]
    Failed(opendal::Error),
    #[error("no answer for {0:?}")]
    Late(Duration),
    #[error("it has {there} bytes of {expected}")]
    Ends { expected: u64, there: u64 },
    #[error("it has other contents than were written")]
    Differs,
}

const OTHER_REGION: &str = "it is in another region: name that one (?region=REGION)";

/// What to do about an error of S3, by its code.
const S3_REMEDIES: [(&str, &str); 6] = [
    (
        "NoSuchBucket",
        "the bucket is not there: make it, or name another",
    ),
    ("PermanentRedirect", OTHER_REGION),
    ("AuthorizationHeaderMalformed", OTHER_REGION),
    ("IllegalLocationConstraintException", OTHER_REGION),
    ("RequestTimeTooSkewed", "set this machine's clock"),
    (
        "AccessDenied",
        "permit these credentials to read, write, list and delete objects there",
    ),
];

/// What failed and why, without OpenDAL's context, what to do first: a message of a process has room for 400 bytes.
fn described(why: &opendal::Error) -> String {
    let text = match why.source() {
        Some(source) => format!("{}: {source}", why.message()),
        None => why.message().to_owned(),
    };
    let has_code = |code: &str| text.contains(&format!("code: \"{code}\""));
    match S3_REMEDIES.iter().find(|(code, _)| has_code(code)) {
        Some((_, remedy)) => format!("{remedy}: {text}"),
        None => text,
    }
}

/// What an error came of, the nearest first.
fn sources(why: &opendal::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(why.source(), |error| (*error).source())
}

impl Context {
    fn because(self, why: Cause) -> ObjectError {
        ObjectError { context: self, why }
    }

    pub fn failed(self, why: opendal::Error) -> ObjectError {
        self.because(Cause::Failed(why))
    }

    pub fn late(self, patience: Duration) -> ObjectError {
        self.because(Cause::Late(patience))
    }

    pub fn ends(self, expected: u64, there: u64) -> ObjectError {
        self.because(Cause::Ends { expected, there })
    }

    pub fn differs(self) -> ObjectError {
        self.because(Cause::Differs)
    }
}

impl ObjectError {
    /// Returns true if there is no such object.
    pub fn is_not_found(&self) -> bool {
        matches!(&self.why, Cause::Failed(why) if why.kind() == ErrorKind::NotFound)
    }

    /// Returns true if attempts went on for as long as they were to: the store did not answer, or asked for patience.
    pub fn is_late(&self) -> bool {
        matches!(self.why, Cause::Late(_)) || self.is_temporary()
    }

    /// Returns true if another attempt may do better.
    pub(crate) fn is_temporary(&self) -> bool {
        let is_temporary = matches!(&self.why, Cause::Failed(why) if why.is_temporary());
        is_temporary && !self.is_full()
    }

    /// Returns true if the store has no room: a folder's file system or quota, Redis by its `maxmemory`.
    pub fn is_full(&self) -> bool {
        let Cause::Failed(why) = &self.why else {
            return false;
        };
        // The code of an answer. Errors of other stores name their URL, in which it may be a part of any word.
        let is_redis = self.context.store.starts_with("redis");
        sources(why).any(|error| {
            let io = error.downcast_ref::<io::Error>().map(io::Error::kind);
            matches!(
                io,
                Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            ) || (is_redis && error.to_string().contains("OOM"))
        })
    }

    /// Returns true if other credentials may help.
    pub fn is_denied(&self) -> bool {
        let Cause::Failed(why) = &self.why else {
            return false;
        };
        let store = &self.context.store;
        if store.starts_with("s3") {
            // Credentials that are not found have no kind of their own.
            return !why.is_temporary() && why.kind() != ErrorKind::NotFound;
        }
        // The codes of Redis's answers.
        let codes = ["NOAUTH", "WRONGPASS", "NOPERM", "AuthenticationFailed"];
        store.starts_with("redis")
            && sources(why).any(|error| {
                let text = error.to_string();
                codes.iter().any(|code| text.contains(code))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(store: &str, source: impl Into<Box<dyn Error + Send + Sync>>) -> ObjectError {
        let context = Context {
            operation: "write",
            object: "1".to_owned(),
            store: store.to_owned(),
        };
        let source: Box<dyn Error + Send + Sync> = source.into();
        let why = opendal::Error::new(ErrorKind::Unexpected, "failed");
        context.failed(why.set_temporary().set_source(io::Error::other(source)))
    }

    #[test]
    fn a_redis_without_memory_is_full() {
        let answer = "\"OOM\": command not allowed when used memory > 'maxmemory'.";
        let error = error("redis://host", answer);
        assert!(error.is_full() && !error.is_temporary());
    }

    #[test]
    fn a_bucket_whose_name_has_the_letters_is_not_full() {
        let error = error("s3://b/ROOM1", "cannot send to http://host/b/ROOM1");
        assert!(!error.is_full() && error.is_temporary());
    }
}
