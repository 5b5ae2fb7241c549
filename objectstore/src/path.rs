//! The URL of one object: a store's, with the object's name before the options.

use crate::{ObjectUrl, OpenError};
use std::fmt;
use std::str::FromStr;

/// Where an object is. What is displayed of it has no options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectPath {
    /// The store, to the folder that the object is in.
    pub url: ObjectUrl,
    /// The object's name in it.
    pub name: String,
}

impl FromStr for ObjectPath {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        let options = text.find(['?', '#']).unwrap_or(text.len());
        let (place, options) = text.split_at(options);
        let url = |text: &str| text.parse::<ObjectUrl>();
        let begin = place.find("://").map_or(0, |scheme| scheme + 3);
        match place[begin..].rsplit_once('/') {
            Some((folder, name)) if !name.is_empty() => Ok(Self {
                url: url(&format!("{}{folder}{options}", &place[..begin]))?,
                name: name.to_owned(),
            }),
            _ => {
                // A URL that is wrong has its own error.
                let store = url(text)?;
                Err(OpenError::NoObject(store.to_string()))
            }
        }
    }
}

impl fmt::Display for ObjectPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = self.url.to_string();
        write!(f, "{}/{}", store.trim_end_matches('/'), self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_is_the_objects_name() {
        for (text, store, name) in [
            ("fs:///var/tmp/guest.mem", "fs:///var/tmp", "guest.mem"),
            ("s3://bucket/guest.mem", "s3://bucket", "guest.mem"),
            (
                "s3://bucket/a/b?region=x/y",
                "s3://bucket/a?region=x/y",
                "b",
            ),
            ("redis://host:1/guest", "redis://host:1", "guest"),
        ] {
            let path: ObjectPath = text.parse().unwrap();
            assert_eq!((path.url.as_str(), &*path.name), (store, name), "{text}");
            let shown = text.split('?').next().unwrap();
            assert_eq!(path.to_string(), shown);
        }
    }

    #[test]
    fn an_error_says_what_is_missing() {
        for (text, part) in [
            ("s3://bucket", "the name of an object"),
            ("s3://bucket/folder/", "the name of an object"),
            ("fs:///guest.mem", "fs:///FOLDER"),
            ("tape://x/y", "no object store has URLs of tape://"),
            ("s3://b/guest?token=pass", "(token)"),
        ] {
            let error = text.parse::<ObjectPath>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
