//! The client's link to the broker: a thread that finds it, asks it for permits and reports to it.
//!
//! *Adaptive Remote Paging for Mobile Computers*, section 3.2 (d). Rule: the thread that serves pages hands
//! over a request and goes on; the answer arrives in its queue, with a ring of its bell. A request is asked
//! again until there is an answer, of this broker or the next one.

use crate::arrival::Arrivals;
use remote_broker::client::{BrokerFinder, PermitAnswer};
use remote_broker::protocol::{ClientUse, Cluster, Request};
use remote_policy::broker::{AllocationRequest, ReallocationRequest};
use remote_policy::identity::{Incarnation, RequestId};
use std::io;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{MissedTickBehavior, interval};

/// How often the hosts are asked for, so that one that starts later is used.
const REFRESH: Duration = Duration::from_secs(1);
/// How long one request is asked before the hosts are reported again meanwhile.
const ASKED: Duration = Duration::from_secs(2);

/// How a client finds its servers.
#[derive(Clone, Debug)]
pub enum ServerSource {
    /// By the broker of the hosts at these control ports, HOST:PORT; of the hosts on the link where none is
    /// named.
    Broker(Vec<String>),
    /// Paging servers that are used alone, HOST:PORT: each is its own broker.
    Alone(Vec<String>),
}

/// What arrives from the broker.
#[derive(Debug)]
pub enum BrokerNews {
    /// The hosts in reach.
    Cluster(Cluster),
    /// The answer to a request for a permit.
    Answer {
        request: RequestId,
        answer: PermitAnswer,
    },
}

enum BrokerCommand {
    Permit(RequestId, Request),
    Report(ClientUse),
}

/// The way to the link's thread, which ends with it.
pub struct BrokerLink {
    commands: UnboundedSender<BrokerCommand>,
}

impl BrokerLink {
    /// Starts the thread. It begins with the control ports that are `named`; without any it asks on the
    /// link.
    pub fn start(
        client: Incarnation,
        name: String,
        named: Vec<String>,
        arrivals: Arrivals,
    ) -> io::Result<Self> {
        let (commands, received) = unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let finder = BrokerFinder::new(client, name, named);
        std::thread::Builder::new()
            .name("selfpage-broker".into())
            .spawn(move || runtime.block_on(serve(finder, received, arrivals)))?;
        Ok(Self { commands })
    }

    /// Requests a permit.
    pub fn allocate(&self, request: AllocationRequest) {
        let id = request.permit.id;
        self.send(BrokerCommand::Permit(id, Request::Allocate(request)));
    }

    /// Requests another size of a permit.
    pub fn reallocate(&self, request: ReallocationRequest) {
        self.send(BrokerCommand::Permit(
            request.id,
            Request::Reallocate(request),
        ));
    }

    /// Reports the use of memory.
    pub fn report(&self, usage: ClientUse) {
        self.send(BrokerCommand::Report(usage));
    }

    fn send(&self, command: BrokerCommand) {
        // The thread ends after this, with the process.
        _ = self.commands.send(command);
    }
}

async fn serve(
    mut finder: BrokerFinder,
    mut commands: UnboundedReceiver<BrokerCommand>,
    arrivals: Arrivals,
) {
    let mut refreshes = interval(REFRESH);
    refreshes.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = refreshes.tick() => {
                if finder.refresh().await {
                    arrivals.send(BrokerNews::Cluster(finder.cluster().clone()).into());
                }
            }
            command = commands.recv() => match command {
                Some(BrokerCommand::Permit(request, message)) => {
                    let answer = loop {
                        if let Some(answer) = finder.request_permit(&message, ASKED).await {
                            break answer;
                        }
                        tracing::debug!("no broker answers");
                        if commands.is_closed() {
                            return;
                        }
                        arrivals.send(BrokerNews::Cluster(finder.cluster().clone()).into());
                    };
                    arrivals.send(BrokerNews::Answer { request, answer }.into());
                }
                Some(BrokerCommand::Report(usage)) => _ = finder.ask_broker(&Request::ReportUse(usage)).await,
                None => return,
            },
        }
    }
}
