//! The client's link to the broker: a thread that finds it, asks it for permits and reports to it.
//!
//! *Adaptive Remote Paging for Mobile Computers*, section 3.2 (d). Rule: the thread that serves pages hands
//! over a request and goes on; the answer arrives in its queue, with a ring of its bell. Requests are asked beside
//! each other, each again until there is an answer, so that one whose server is stopped delays no other.

use crate::arrival::Arrivals;
use remote_broker::client::{BrokerFinder, PermitAnswer};
use remote_broker::link::ControlLinks;
use remote_broker::protocol::{ClientUse, Cluster, Request};
use remote_keys::Keyring;
use remote_policy::broker::{AllocationRequest, ReallocationRequest};
use remote_policy::identity::{Incarnation, RequestId};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval};

/// How often the hosts are asked for, so that one that starts later is used.
const REFRESH: Duration = Duration::from_secs(1);

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
    /// None of them answers, and why the last one does not.
    NoHost(String),
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
    /// link. Those that an earlier process of the client knew are `former`.
    pub fn start(
        client: Incarnation,
        name: String,
        named: Vec<String>,
        former: Vec<SocketAddr>,
        keys: Option<Arc<Keyring>>,
        arrivals: Arrivals,
    ) -> io::Result<Self> {
        let (commands, received) = unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let finder = BrokerFinder::resume(client, name, named, former, ControlLinks::new(keys)?);
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
    // They end with this.
    let mut requests = JoinSet::new();
    let mut report: Option<JoinHandle<()>> = None;
    loop {
        tokio::select! {
            _ = refreshes.tick() => {
                let news = match finder.refresh().await {
                    Ok(()) => BrokerNews::Cluster(finder.cluster()),
                    Err(why) => BrokerNews::NoHost(why.to_string()),
                };
                arrivals.send(news.into());
            }
            Some(_) = requests.join_next() => {}
            command = commands.recv() => match command {
                Some(BrokerCommand::Permit(request, message)) => {
                    requests.spawn(obtain(finder.clone(), request, message, arrivals.clone()));
                }
                // One that the last report has not left is not missed.
                Some(BrokerCommand::Report(_)) if report.as_ref().is_some_and(|it| !it.is_finished()) => {}
                Some(BrokerCommand::Report(usage)) => {
                    let mut finder = finder.clone();
                    report = Some(tokio::spawn(async move {
                        let _ = finder.ask_broker(&Request::ReportUse(usage)).await;
                    }));
                }
                None => return,
            },
        }
    }
}

/// Asks for a permit until there is an answer, of this broker or the next one: the same request each time, so that
/// a server which has issued the permit already answers with that one.
async fn obtain(
    mut finder: BrokerFinder,
    request: RequestId,
    message: Request,
    arrivals: Arrivals,
) {
    if let Some(answer) = finder.request_permit(&message, Duration::MAX).await {
        arrivals.send(BrokerNews::Answer { request, answer }.into());
    }
}
