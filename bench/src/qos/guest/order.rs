//! The orders of a guest, each a line.

use crate::ExperimentError;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// An order to a guest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// Writes every page; answers [`super::Done`].
    Fill,
    /// Reads pages at random, one after the other; answers [`super::Done`].
    Closed(Duration),
    /// Reads pages at random when they are due, so many a second; answers [`super::Latency`].
    Open {
        /// For so long.
        during: Duration,
        /// Accesses a second.
        rate: f64,
        /// Makes the times and the pages.
        seed: u64,
    },
    /// Reads pages at random by so many threads, until [`Order::Rest`].
    Roam(u64),
    /// Changes pages at random by so many threads, until [`Order::Rest`].
    Churn(u64),
    /// Ends either; answers [`super::Done`].
    Rest,
    /// Answers the number of revocations it received; also while it works.
    Asked,
    /// Touches so many pages, answers how long that took ([`super::Done`]), and gives them and their
    /// frames up again before it does.
    Claim(u64),
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fill => f.write_str("fill"),
            Self::Closed(during) => write!(f, "closed {}", during.as_millis()),
            Self::Open { during, rate, seed } => {
                write!(f, "open {} {rate} {seed}", during.as_millis())
            }
            Self::Roam(threads) => write!(f, "roam {threads}"),
            Self::Churn(threads) => write!(f, "churn {threads}"),
            Self::Rest => f.write_str("rest"),
            Self::Asked => f.write_str("asked"),
            Self::Claim(pages) => write!(f, "claim {pages}"),
        }
    }
}

impl FromStr for Order {
    type Err = ExperimentError;

    fn from_str(text: &str) -> Result<Self, ExperimentError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let wrong = || ExperimentError::Worker(format!("invalid order {text:?}"));
        let number = |word: &str| word.parse().map_err(|_| wrong());
        let time = |word: &str| number(word).map(Duration::from_millis);
        Ok(match words.as_slice() {
            ["fill"] => Self::Fill,
            ["closed", during] => Self::Closed(time(during)?),
            ["open", during, rate, seed] => Self::Open {
                during: time(during)?,
                rate: rate.parse().map_err(|_| wrong())?,
                seed: number(seed)?,
            },
            ["roam", threads] => Self::Roam(number(threads)?.max(1)),
            ["churn", threads] => Self::Churn(number(threads)?.max(1)),
            ["rest"] => Self::Rest,
            ["asked"] => Self::Asked,
            ["claim", pages] => Self::Claim(number(pages)?),
            _ => return Err(wrong()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_is_written() {
        let open = Order::Open {
            during: Duration::from_millis(1500),
            rate: 2000.5,
            seed: 7,
        };
        let closed = Order::Closed(Duration::from_secs(2));
        let claim = Order::Claim(256);
        let others = [Order::Roam(1), Order::Churn(4), Order::Rest, Order::Asked];
        for order in [Order::Fill, closed, open, claim].into_iter().chain(others) {
            assert_eq!(order.to_string().parse::<Order>().unwrap(), order);
        }
        assert!("dance".parse::<Order>().is_err());
    }
}
