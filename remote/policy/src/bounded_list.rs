//! Lists in messages of other hosts, whose items take more memory here than on the wire.
//!
//! Rule: a list that is longer than its bound is refused before it is kept.

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;

/// A list, or a set, of at most `MOST` items.
///
/// # Errors
/// As the format has them, and where there are more.
pub fn deserialize<'de, const MOST: usize, C, D>(from: D) -> Result<C, D::Error>
where
    C: FromIterator<C::Item> + IntoIterator,
    C::Item: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let list = from.deserialize_seq(ListVisitor::<MOST, C::Item>(PhantomData))?;
    Ok(list.into_iter().collect())
}

struct ListVisitor<const MOST: usize, T>(PhantomData<T>);

impl<'de, const MOST: usize, T: Deserialize<'de>> Visitor<'de> for ListVisitor<MOST, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MOST} items at most")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::with_capacity(items.size_hint().unwrap_or(0).min(MOST));
        while let Some(item) = items.next_element()? {
            if list.len() == MOST {
                return Err(A::Error::invalid_length(MOST + 1, &self));
            }
            list.push(item);
        }
        Ok(list)
    }
}
