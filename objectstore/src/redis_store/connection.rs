//! The connections to a Redis: one for reads, and one for everything else, so that a page waits for no segment.
//!
//! Each takes all commands of its kind at once, and has their answers in their order: a command that is sent again by a
//! connection which is slow is no sooner done. So an attempt is given up where the connection is silent, and with it the
//! connection: all that wait for it are tried again by another.

use super::endpoint::Endpoint;
use opendal::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, FromRedisValue, Pipeline, RedisConnectionInfo, RedisError,
    RedisResult,
};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tokio::task::{AbortHandle, Id};

/// What an answer counts as, beside its bytes: that of a write has five.
const ANSWER: u64 = 4096;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Reads,
    Others,
}

/// The connections to a server, of which none is open before it is needed.
#[derive(Debug, Default)]
pub(crate) struct RedisConnections {
    endpoint: Endpoint,
    login: RedisConnectionInfo,
    reads: Link,
    others: Link,
}

/// A connection, and those that follow it.
#[derive(Debug, Default)]
struct Link {
    current: Mutex<Option<SharedConnection>>,
    carried: Arc<AtomicU64>,
}

/// A connection that is being opened, is open, or has ended.
#[derive(Clone, Debug)]
struct SharedConnection {
    opened: watch::Receiver<Option<RedisResult<MultiplexedConnection>>>,
    task: AbortHandle,
}

/// Gives a connection up, unless its answer came.
struct GiveUp<'a> {
    link: &'a Link,
    silent: Option<Id>,
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        if let Some(silent) = self.silent {
            self.link.give_up(silent);
        }
    }
}

fn failed(why: RedisError) -> Error {
    let error = Error::new(ErrorKind::Unexpected, why.category());
    error.set_source(why).set_temporary()
}

impl RedisConnections {
    pub fn new(endpoint: Endpoint, login: RedisConnectionInfo) -> Self {
        Self {
            endpoint,
            login,
            ..Self::default()
        }
    }

    fn link(&self, lane: Lane) -> &Link {
        match lane {
            Lane::Reads => &self.reads,
            Lane::Others => &self.others,
        }
    }

    /// Bytes that were sent and received so far, and 4096 for each answer: where they grow no more, the server is silent.
    pub fn carried(&self, lane: Lane) -> u64 {
        self.link(lane).carried.load(Ordering::Relaxed)
    }

    /// The answer to a command.
    pub async fn query<T: FromRedisValue>(&self, lane: Lane, command: &Cmd) -> Result<T> {
        let query = async |mut to: MultiplexedConnection| command.query_async(&mut to).await;
        self.run(lane, query).await
    }

    /// The answers to several.
    pub async fn query_all<T: FromRedisValue>(&self, lane: Lane, commands: &Pipeline) -> Result<T> {
        let query = async |mut to: MultiplexedConnection| commands.query_async(&mut to).await;
        self.run(lane, query).await
    }

    /// Where its future is dropped before its end, the connection is given up.
    async fn run<T, F>(
        &self,
        lane: Lane,
        query: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let link = self.link(lane);
        let connection = link.connection(&self.endpoint, &self.login);
        let mut give_up = GiveUp {
            link,
            silent: Some(connection.task.id()),
        };
        let answer = match connection.opened().await {
            Ok(opened) => query(opened).await,
            Err(why) => Err(why),
        };
        give_up.silent = None;
        if answer.is_ok() {
            link.carried.fetch_add(ANSWER, Ordering::Relaxed);
        }
        answer.map_err(failed)
    }
}

impl Link {
    fn current(&self) -> MutexGuard<'_, Option<SharedConnection>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, or another one where it has ended.
    fn connection(&self, endpoint: &Endpoint, login: &RedisConnectionInfo) -> SharedConnection {
        let mut current = self.current();
        match &*current {
            Some(connection) if !connection.task.is_finished() => connection.clone(),
            _ => {
                let carried = Arc::clone(&self.carried);
                let made = SharedConnection::open(endpoint.clone(), login.clone(), carried);
                current.insert(made).clone()
            }
        }
    }

    /// Ends a connection, if it is the current one still: what waits for it fails.
    fn give_up(&self, silent: Id) {
        let given_up = self.current().take_if(|it| it.task.id() == silent);
        if let Some(connection) = given_up {
            connection.task.abort();
        }
    }
}

impl SharedConnection {
    fn open(endpoint: Endpoint, login: RedisConnectionInfo, carried: Arc<AtomicU64>) -> Self {
        let (sender, opened) = watch::channel(None);
        let serving = tokio::spawn(async move {
            let connecting = async {
                let stream = endpoint.connect(carried).await?;
                // An attempt has its end elsewhere.
                let without_end = AsyncConnectionConfig::new()
                    .set_response_timeout(None)
                    .set_connection_timeout(None);
                MultiplexedConnection::new_with_config(&login, stream, without_end).await
            };
            match connecting.await {
                Ok((connection, serving)) => {
                    _ = sender.send(Some(Ok(connection)));
                    drop(sender);
                    serving.await;
                }
                Err(why) => _ = sender.send(Some(Err(why))),
            }
        });
        Self {
            opened,
            task: serving.abort_handle(),
        }
    }

    async fn opened(&self) -> RedisResult<MultiplexedConnection> {
        let mut opened = self.opened.clone();
        let opened = opened.wait_for(Option::is_some).await;
        let opened = opened.ok().and_then(|opened| opened.clone());
        opened.unwrap_or_else(|| {
            let given_up = io::Error::new(io::ErrorKind::TimedOut, "the server is silent");
            Err(given_up.into())
        })
    }
}
