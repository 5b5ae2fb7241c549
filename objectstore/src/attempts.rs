//! Attempts of an operation, within the time that it may take.

use crate::error::ObjectError;
use crate::redis_store::Lane;
use crate::{ATTEMPT, ObjectStore};
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// Bytes that the connection of an attempt carries within that time where it is not silent: where it is looked at so often.
const CARRIED: u64 = 4096;
const LOOK: Duration = Duration::from_secs(1);
/// Pauses between attempts double from the one to the other.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);

impl ObjectStore {
    /// Attempts an operation until it is done, is refused for good, or takes too long.
    pub(crate) async fn within<T, F>(
        &self,
        operation: &'static str,
        name: &str,
        attempt: impl FnMut() -> F,
    ) -> Result<T, ObjectError>
    where
        F: IntoFuture<Output = opendal::Result<T>>,
    {
        let most = match &self.redis {
            Some(_) => ATTEMPT,
            None => self.patience,
        };
        let carried = || self.carried(Lane::Others);
        self.within_attempts(operation, name, most, carried, attempt)
            .await
    }

    /// Bytes that the connection of a Redis has carried, which attempts share.
    pub(crate) fn carried(&self, lane: Lane) -> u64 {
        self.redis.as_ref().map_or(0, |redis| redis.carried(lane))
    }

    /// Likewise, of which the first attempt may take so long, and each further one twice as long. Time in which the
    /// operation's connection carries something (`carried`, in bytes) does not count: a further attempt would be no sooner
    /// done.
    pub(crate) async fn within_attempts<T, F>(
        &self,
        operation: &'static str,
        name: &str,
        mut most: Duration,
        carried: impl Fn() -> u64,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, ObjectError>
    where
        F: IntoFuture<Output = opendal::Result<T>>,
    {
        let mut until = Instant::now() + self.patience;
        let mut pause = MIN_PAUSE;
        let mut last = None;
        loop {
            let mut known = (Instant::now(), carried());
            let mut end = until.min(known.0 + most);
            let mut attempt = pin!(attempt().into_future());
            let ended = loop {
                let look = end.min(Instant::now() + LOOK);
                let ended = timeout_at(look, attempt.as_mut()).await;
                let now = (Instant::now(), carried());
                if ended.is_err() && now.1 >= known.1 + CARRIED {
                    until += now.0 - known.0;
                    end = until.min(now.0 + most);
                    known = now;
                } else if ended.is_ok() || look == end {
                    break ended;
                }
            };
            match ended {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(why)) => {
                    let error = self.error(operation, name).failed(why);
                    if !error.is_temporary() || Instant::now() + pause > until {
                        return Err(error);
                    }
                    last = Some(error);
                }
                Err(_) if end < until => {
                    most *= 2;
                    continue;
                }
                Err(_) => {
                    let late = || self.error(operation, name).late(self.patience);
                    return Err(last.unwrap_or_else(late));
                }
            }
            sleep(pause).await;
            pause = MAX_PAUSE.min(pause * 2);
        }
    }
}
