//! The addresses of hosts that are named.
//!
//! Rule: a name server that does not answer delays no host that has an address: names are looked up beside each
//! other and waited for together, for [`LIMIT`] at most. A look-up that takes longer goes on, and its answer is there the
//! next time.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

/// How long names are waited for. A name server on the same network answers in a fraction of it.
const LIMIT: Duration = Duration::from_millis(500);

/// The addresses of a name, or the reason that it has no address.
type Found = io::Result<Vec<SocketAddr>>;

/// The look-ups that are under way.
#[derive(Default)]
pub struct Resolver {
    lookups: BTreeMap<String, JoinHandle<Found>>,
}

impl Resolver {
    /// Looks up names, HOST:PORT. Those that take too long have no addresses this time.
    pub async fn resolve(&mut self, names: &[String]) -> Vec<(String, Found)> {
        let lookup = |name| async move { Ok(lookup_host(name).await?.collect()) };
        self.resolve_by(names, lookup).await
    }

    async fn resolve_by<F>(
        &mut self,
        names: &[String],
        lookup: impl Fn(String) -> F,
    ) -> Vec<(String, Found)>
    where
        F: Future<Output = Found> + Send + 'static,
    {
        let end = Instant::now() + LIMIT;
        for name in names {
            let begin = || tokio::spawn(lookup(name.clone()));
            self.lookups.entry(name.clone()).or_insert_with(begin);
        }
        let mut resolved = Vec::new();
        for name in names {
            let Some(lookup) = self.lookups.get_mut(name) else {
                // It is named twice.
                continue;
            };
            let found = match timeout_at(end, lookup).await {
                Ok(ended) => {
                    self.lookups.remove(name);
                    ended.unwrap_or_else(|why| Err(io::Error::other(why)))
                }
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            };
            resolved.push((name.clone(), found));
        }
        resolved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_answered_keeps_no_other_from_being_found() {
        let runtime = crate::test_member::runtime();
        let address = SocketAddr::from(([10, 0, 0, 1], 4765));
        let lookup = move |name: String| async move {
            match name == "silent" {
                true => std::future::pending().await,
                false => Ok(vec![address]),
            }
        };
        let names = ["silent", "near"].map(str::to_owned);
        let mut resolver = Resolver::default();
        for _ in 0..2 {
            let resolved = runtime.block_on(resolver.resolve_by(&names, lookup));
            let [(_, Err(silent)), (name, Ok(near))] = &resolved[..] else {
                panic!("{resolved:?}");
            };
            assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
            assert_eq!((name.as_str(), &near[..]), ("near", &[address][..]));
            assert_eq!(resolver.lookups.len(), 1, "one look-up goes on");
        }
    }
}
