//! Work of the transport's own, in the schedule beside its clients' transactions.
//!
//! A transport may have pages to move that no client asked for: copies that it makes again, say. Its owner admits a
//! client for them, with a contract of its own, and the scheduler decides when a piece of the work is started. Rule:
//! the scheduler has one piece at a time, queued or in flight. A transport that reports a piece as ended while it is still
//! under way has the next one started beside it.
//!
//! With x in the contract, pieces are also started in spare time: no client has a transaction, nor had one for
//! [`TURNAROUND`]. Slack is not enough: with many transactions in flight there is slack even while a client waits for its
//! one read. Pieces in spare time belong to a second client, which has slack alone. A piece that a client's request waits
//! for is started at once, as part of that request.

use super::transport::Transport;
use crate::atropos::{
    AdmissionError, Atropos, ClientId, DiskContract, InFlightId, TransactionDesc,
};
use crate::cost_model::{CostModel, Op};
use crate::time::{Nanos, Time};
use crate::trace::Writer;

/// How soon a client that works through its pages has its next transaction: `poll_policy` has the measurement.
const TURNAROUND: Nanos = Nanos::micros(200);

/// The tag of a piece: no client has so many transactions.
pub(super) const BACKGROUND_TAG: u64 = u64::MAX;

/// A piece of a transport's own work: the bytes that it moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackgroundWork {
    /// Bytes read.
    pub read: u32,
    /// Bytes written.
    pub written: u32,
    /// A client's request waits for it.
    pub is_awaited: bool,
}

/// The client of a transport's own work, and that of the same in spare time.
#[derive(Debug)]
pub(super) struct Background {
    pub client: ClientId,
    spare: Option<ClientId>,
    /// The scheduler has a piece to name.
    is_queued: bool,
    in_flight: Option<Piece>,
    /// When a client's transaction was in flight last, arrived or completed.
    busy: Time,
}

/// A piece in flight. One that a client's request waits for has no ticket.
#[derive(Clone, Copy, Debug)]
struct Piece {
    ticket: Option<InFlightId>,
    started: Time,
}

impl Background {
    /// Admits the clients of the work.
    pub fn admit(
        now: Time,
        atropos: &mut Atropos<Writer>,
        contract: DiskContract,
    ) -> Result<Self, AdmissionError> {
        let slack_alone = DiskContract {
            slice: Nanos::ZERO,
            ..contract
        };
        let promised = DiskContract {
            extra: false,
            ..contract
        };
        let client = atropos.admit(now, promised)?;
        let spare = contract.extra.then(|| atropos.admit(now, slack_alone));
        Ok(Self {
            client,
            spare: spare.transpose()?,
            is_queued: false,
            in_flight: None,
            busy: Time(0),
        })
    }

    /// A client's transaction has arrived or completed: the time is not spare.
    pub fn note_client(&mut self, now: Time) {
        self.busy = now;
    }

    /// Queues the next piece of work, if there is one, or starts it, if a client's request waits for it: such requests may
    /// be all that the bound lets be in flight.
    pub fn queue(
        &mut self,
        now: Time,
        atropos: &mut Atropos<Writer>,
        transport: &mut dyn Transport,
        model: &CostModel,
    ) {
        // The piece itself is not a client's.
        let own = self.in_flight.and_then(|piece| piece.ticket);
        if atropos.in_flight() > usize::from(own.is_some()) {
            self.busy = now;
        }
        if self.in_flight.is_some() {
            return;
        }
        let Some(work) = transport.background() else {
            return;
        };
        if work.is_awaited {
            return self.begin(now, None, transport);
        }
        if std::mem::replace(&mut self.is_queued, true) {
            return;
        }
        let BackgroundWork { read, written, .. } = work;
        let job = TransactionDesc {
            op: Op::Write,
            bytes: read + written,
            cost: model.cost(Op::Read, read) + model.cost(Op::Write, written),
            tag: BACKGROUND_TAG,
        };
        let is_spare = now >= self.busy + TURNAROUND;
        let spare = self.spare.filter(|_| is_spare);
        atropos.submit(now, spare.unwrap_or(self.client), job);
    }

    /// Starts the piece that was queued, unless one was started meanwhile.
    pub fn start(
        &mut self,
        now: Time,
        ticket: InFlightId,
        atropos: &mut Atropos<Writer>,
        transport: &mut dyn Transport,
    ) {
        self.is_queued = false;
        match self.in_flight {
            Some(_) => atropos.complete(now, ticket, Nanos::ZERO),
            None => self.begin(now, Some(ticket), transport),
        }
    }

    fn begin(&mut self, now: Time, ticket: Option<InFlightId>, transport: &mut dyn Transport) {
        transport.start_background(now);
        self.in_flight = Some(Piece {
            ticket,
            started: now,
        });
    }

    /// Completes the piece in flight, if it has ended. Returns true if it has.
    pub fn complete(
        &mut self,
        now: Time,
        atropos: &mut Atropos<Writer>,
        transport: &mut dyn Transport,
    ) -> bool {
        if self.in_flight.is_none() || transport.is_background_in_flight() {
            return false;
        }
        if let Some(Piece { ticket, started }) = self.in_flight.take()
            && let Some(ticket) = ticket
        {
            atropos.complete(now, ticket, now - started);
        }
        true
    }
}
