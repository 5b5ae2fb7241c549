//! `selfpage remote`: what the hosts that lend memory to each other do.

use crate::cluster::NO_KEY;
use crate::remote_client::{control_port, parse_host};
use remote_broker::link::ControlLinks;
use remote_broker::protocol::{
    ClientSummary, ClusterStatus, Member, ObjectPlace, ObjectRedundancy,
};
use remote_broker::{CONTROL_PORT, client, discovery};
use remote_keys::Keyring;
use remote_policy::identity::HostId;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::lookup_host;
use wired::{Bytes, PAGE};

/// How long answers on the link are waited for.
const ON_LINK: Duration = Duration::from_millis(500);

/// Show the memory that machines lend to each other.
#[derive(clap::Args)]
pub struct RemoteArgs {
    #[command(subcommand)]
    command: RemoteCommand,
}

#[derive(clap::Subcommand)]
enum RemoteCommand {
    /// Machines that lend memory, their broker, and the programs that use it: which pages are where,
    /// what is granted, how far each machine is, and what moves
    Status {
        /// A machine to ask, by its control port. The default is this one, or those on the same link
        #[arg(long, value_name = "HOST[:PORT]", value_parser = parse_host)]
        broker: Option<String>,
        /// Ask in the clear, where `selfpage serve --insecure` runs
        #[arg(long)]
        insecure: bool,
        /// As JSON: memory in pages of 4096 bytes, times in seconds and nanoseconds; hosts and boots are text, since they are
        /// names. `permits` and `round_trips` are pairs of a host and its value, `broker` of a host and its epoch
        #[arg(long)]
        json: bool,
    },
}

/// Shows the state.
pub fn remote(args: RemoteArgs) -> Result<ExitCode, Box<dyn Error>> {
    let RemoteCommand::Status {
        broker,
        insecure,
        json,
    } = args.command;
    let keys = match insecure {
        true => None,
        false => {
            let found = Keyring::find(&Keyring::default_folder()?)?;
            let keyring = found.ok_or_else(|| {
                format!("{NO_KEY}; or pass --insecure where the servers run with it")
            })?;
            Some(Arc::new(keyring))
        }
    };
    let links = ControlLinks::new(keys)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let status = runtime.block_on(find_status(&links, broker.as_deref()))?;
    match json {
        true => println!("{}", serde_json::to_string_pretty(&status)?),
        false => show(&status),
    }
    Ok(ExitCode::SUCCESS)
}

async fn find_status(
    links: &ControlLinks,
    broker: Option<&str>,
) -> Result<ClusterStatus, Box<dyn Error>> {
    let addresses: BTreeSet<SocketAddr> = match broker {
        Some(host) => {
            let unknown =
                |why| format!("--broker {host}: no address is found ({why}); check the name");
            let found = lookup_host(control_port(host)).await;
            found.map_err(unknown)?.collect()
        }
        None => {
            let own = SocketAddr::from((Ipv4Addr::LOCALHOST, CONTROL_PORT));
            if let Ok(status) = client::status(links, own).await {
                return Ok(status);
            }
            discovery::find(ON_LINK).await?
        }
    };
    // Those on the link may be another cluster's, or gone.
    let mut failures = Vec::new();
    for address in addresses {
        match client::status(links, address).await {
            Ok(status) => return Ok(status),
            Err(why) => failures.push(format!("{address}: {why}")),
        }
    }
    Err(match failures.is_empty() {
        false => format!(
            "{}: is `selfpage serve` there, and its control port the one that --broker names (two above the port of \
             --listen)?",
            failures.join("; ")
        )
        .into(),
        true => "no machine on this link has a broker: run `selfpage serve` on one, or name a machine with --broker HOST".into(),
    })
}

fn show(status: &ClusterStatus) {
    let members = &status.cluster.members;
    match (status.cluster.broker(), status.cluster.broker) {
        (Some(broker), Some((_, epoch))) => println!(
            "The broker is on {}, in epoch {}: it decides which machine lends to which program.",
            name_of(members, broker.host()),
            epoch.number
        ),
        _ => println!("No broker at the moment: pages are read and written, and no more is lent."),
    }
    println!("\nMemory is lent by {}:", count(members.len(), "machine"));
    for member in members {
        let known = status
            .servers
            .iter()
            .find(|server| server.host == member.host());
        let lends = match known {
            Some(server) => format!("{} free to lend", pages(server.lendable_pages)),
            None if status.is_broker => "not the broker's yet".to_owned(),
            None => "what it lends is known to the broker alone".to_owned(),
        };
        let granted: u64 = permits_at(&status.clients, member.host());
        println!(
            "  {:<16} {:<22} {lends}, {} granted",
            member.name,
            member.paging.to_string(),
            pages(granted)
        );
    }
    if status.clients.is_empty() {
        return println!("\nNo program uses it.");
    }
    println!("\n{} of it:", count(status.clients.len(), "user"));
    for client in &status.clients {
        show_client(client, members);
    }
    if status.clients_left_out > 0 {
        println!("  {} more that are not shown", status.clients_left_out);
    }
}

fn show_client(client: &ClientSummary, members: &[Member]) {
    let name = match client.name.is_empty() {
        true => client.client.host.to_string(),
        false => format!("a program on {}", client.name),
    };
    println!("  {name}");
    for (server, granted) in &client.permits {
        let trips = &client.usage.round_trips;
        let trip = trips.iter().find(|(host, _)| host == server);
        let trip = trip.map_or(String::new(), |(_, trip)| format!(", {trip:.0?} away"));
        println!(
            "    may write {} on {}{trip}",
            pages(*granted),
            name_of(members, *server)
        );
    }
    let usage = &client.usage;
    let left_out = usize::try_from(client.objects_left_out).unwrap_or(usize::MAX);
    let objects = usage.objects.len().saturating_add(left_out);
    if objects > 0 {
        println!(
            "    {} of pages, each of 16 MiB at most:",
            count(objects, "object")
        );
    }
    for ((redundancy, servers), objects) in by_place(&usage.objects) {
        let names: Vec<_> = servers.iter().map(|host| name_of(members, *host)).collect();
        let place = match names.is_empty() {
            true => "nowhere yet".to_owned(),
            false => format!("whole on {}", names.join(" and on ")),
        };
        let kind = match redundancy {
            ObjectRedundancy::Copies => "",
            ObjectRedundancy::Stripe => ", in a stripe, whose other objects restore its pages",
            ObjectRedundancy::Parity => ", the parity of a stripe",
        };
        println!("      {} {place}{kind}", count(objects, "object"));
    }
    if left_out > 0 {
        println!("      {} that are not shown", count(left_out, "object"));
    }
    println!(
        "    {} under way, {} made so far",
        count(usage.copies_under_way as usize, "copy"),
        usage.copies_made
    );
}

/// How many objects are on each set of servers, by what else there is of their pages.
fn by_place(objects: &[ObjectPlace]) -> BTreeMap<(ObjectRedundancy, Vec<HostId>), usize> {
    let mut places = BTreeMap::new();
    for object in objects {
        let mut servers = object.servers.clone();
        servers.sort_unstable();
        *places.entry((object.redundancy, servers)).or_default() += 1;
    }
    places
}

fn permits_at(clients: &[ClientSummary], server: HostId) -> u64 {
    let permits = clients.iter().flat_map(|client| &client.permits);
    let here = permits.filter(|(host, _)| *host == server);
    here.map(|(_, granted)| granted).sum()
}

fn name_of(members: &[Member], host: HostId) -> String {
    match members.iter().find(|member| member.host() == host) {
        Some(member) => format!("{} ({})", member.name, member.paging),
        None => host.to_string(),
    }
}

fn pages(count: u64) -> String {
    Bytes(count.saturating_mul(PAGE as u64)).to_string()
}

fn count(number: usize, noun: &str) -> String {
    match (number, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        (_, None) => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_counted_by_where_they_are() {
        let object = |number, servers: &[u64]| ObjectPlace {
            object: remote_policy::identity::ObjectId {
                client: HostId(9),
                number,
            },
            redundancy: ObjectRedundancy::Copies,
            servers: servers.iter().copied().map(HostId).collect(),
            copying_to: Vec::new(),
        };
        let striped = ObjectPlace {
            redundancy: ObjectRedundancy::Stripe,
            ..object(4, &[1])
        };
        let all = [
            object(1, &[1, 2]),
            object(2, &[2, 1]),
            object(3, &[1]),
            striped,
        ];
        let places = by_place(&all);
        let of = |redundancy, servers: &[u64]| {
            let servers = servers.iter().copied().map(HostId).collect();
            places[&(redundancy, servers)]
        };
        assert_eq!(of(ObjectRedundancy::Copies, &[1, 2]), 2);
        assert_eq!(of(ObjectRedundancy::Copies, &[1]), 1);
        assert_eq!(of(ObjectRedundancy::Stripe, &[1]), 1);
        assert_eq!(count(2, "copy"), "2 copies");
    }
}
