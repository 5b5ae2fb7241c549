//! Where a snapshot is, as `--snapshot` has it.

use objectstore::{ObjectPath, OpenError};
use std::path::PathBuf;
use std::str::FromStr;

/// What an object's URL begins with, as in the option of a store.
const OBJECT: &str = "opendal:";

/// A file, or an object of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotSource {
    /// A file.
    File(PathBuf),
    /// `opendal:` and the object's URL.
    Object(ObjectPath),
}

impl FromStr for SnapshotSource {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        match text.strip_prefix(OBJECT) {
            Some(url) => url.parse().map(Self::Object),
            None => Ok(Self::File(text.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_tells_an_object_from_a_file() {
        let file = SnapshotSource::File("guest.mem".into());
        assert_eq!("guest.mem".parse::<SnapshotSource>().unwrap(), file);
        let object = "opendal:s3://bucket/guest.mem".parse().unwrap();
        assert!(matches!(object, SnapshotSource::Object(path) if path.name == "guest.mem"));
    }
}
