//! `selfpage cluster`: which hosts lend memory to each other.

use remote_keys::invitation::Invitation;
use remote_keys::join::{Inviter, Joined, join};
use remote_keys::sharing::SharingError;
use remote_keys::{INVITE_PORT, Keyring, sharing};
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use wired::Time;

/// Why nothing can be read from the cluster of a host that was never in one.
pub const NO_KEY: &str = "this host has no key yet; `selfpage cluster invite` on one host and `selfpage cluster join` on \
                          another make two hosts a cluster";

/// Show and change the cluster: the hosts whose keys this host accepts.
///
/// A host has a key, made when it first invites, joins or serves. Paging servers and their clients accept the keys of their
/// cluster's members, and no others. The key belongs to the user that runs the command: `selfpage serve` and
/// `selfpage run` use that user's.
#[derive(clap::Args)]
pub struct ClusterArgs {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(clap::Subcommand)]
enum ClusterCommand {
    /// Print an invitation for one host, and wait until that host has joined
    Invite {
        /// How long it is valid: 90s, 10min
        #[arg(long = "for", value_name = "TIME", default_value = "10min")]
        life: Time,
        /// Where to wait
        #[arg(long, value_name = "ADDRESS:PORT", default_value_t = SocketAddr::from((Ipv4Addr::UNSPECIFIED, INVITE_PORT)))]
        listen: SocketAddr,
        /// By which address the other host reaches this one; all that this host has by default
        #[arg(long, value_name = "ADDRESS,...", value_delimiter = ',')]
        address: Vec<IpAddr>,
    },
    /// Join the cluster of the host that has printed the invitation
    Join {
        /// What `selfpage cluster invite` has printed there
        invitation: Invitation,
    },
    /// List the members
    Show {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a member for good: its key is accepted no more, by any member
    Remove {
        /// Its name, or the beginning of its key
        member: String,
    },
    /// Leave the cluster: delete this host's key and its list of members
    Leave,
}

/// The least time in which another host can be told of an invitation.
const SHORTEST_LIFE: Duration = Duration::from_secs(1);

/// Shows or changes.
pub fn cluster(args: ClusterArgs) -> Result<ExitCode, Box<dyn Error>> {
    let folder = Keyring::default_folder()?;
    let open = || Keyring::open(&folder).map(Arc::new);
    match args.command {
        ClusterCommand::Invite {
            life,
            listen,
            address,
        } => invite(open()?, listen, &address, life)?,
        ClusterCommand::Join { invitation } => {
            let keyring = open()?;
            if invitation.inviter == keyring.fingerprint() {
                return Err("this host has printed the invitation: run the command on the host that is to join".into());
            }
            keyring.set_own(&host_name(), None)?;
            print_joined("joined the cluster of", &join(&keyring, &invitation)?);
            share(&keyring)?;
        }
        ClusterCommand::Show { json } => match Keyring::find(&folder)? {
            Some(keyring) => show(&keyring, json)?,
            None if json => println!("[]"),
            None => println!("no cluster: {NO_KEY}"),
        },
        ClusterCommand::Remove { member } => {
            let keyring = Keyring::find(&folder)?.ok_or(NO_KEY)?;
            remove(&Arc::new(keyring), &member)?;
        }
        ClusterCommand::Leave => {
            let keyring = Keyring::find(&folder)?.ok_or(NO_KEY)?;
            Keyring::delete(&folder)?;
            println!(
                "left: this host has another key at its next use. The members keep {} until one of them removes it: \
                 selfpage cluster remove {0}\nA `selfpage serve` with the old key ends, and programs that page to \
                 members lose their pages there when a link breaks: end them, and start both again",
                keyring.fingerprint().short()
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// This host's name, for people.
pub fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

fn invite(
    keyring: Arc<Keyring>,
    listen: SocketAddr,
    address: &[IpAddr],
    life: Time,
) -> Result<(), Box<dyn Error>> {
    if life.0 < SHORTEST_LIFE {
        return Err(format!(
            "--for {life} is too short for another host to join: give some minutes, 10min"
        )
        .into());
    }
    keyring.set_own(&host_name(), None)?;
    let inviter = Inviter::open(Arc::clone(&keyring), listen, address, life.0)?;
    println!(
        "For one other host, within {life}, there:\n\n    selfpage cluster join {}\n",
        inviter.invitation()
    );
    println!(
        "The invitation lets any host join: pass it on by a way that you trust. This command waits; Ctrl-C withdraws it."
    );
    let joined = inviter.wait()?;
    print_joined("joined by", &joined);
    share(&keyring)
}

fn print_joined(what: &str, joined: &Joined) {
    println!(
        "{what} {} (key {}): {} members",
        joined.name,
        joined.key.short(),
        joined.members
    );
}

/// Gives the other members this host's list. Those that do not answer learn it later.
fn share(keyring: &Arc<Keyring>) -> Result<(), Box<dyn Error>> {
    let mut refused = Vec::new();
    for (name, why) in sharing::share_with_all(keyring)? {
        match why {
            SharingError::NotRemoved(_) => refused.push(format!("{name} did not remove it: {why}")),
            why => print_error!(
                "selfpage: {name} did not receive the new list, and receives it from a member once its paging server runs: {why}"
            ),
        }
    }
    match refused.is_empty() {
        true => Ok(()),
        false => Err(refused.join("\n").into()),
    }
}

fn remove(keyring: &Arc<Keyring>, member: &str) -> Result<(), Box<dyn Error>> {
    let key = keyring.members()?.find(member)?;
    if key == keyring.fingerprint() {
        return Err(format!("{member} is this host: run `selfpage cluster leave` for that").into());
    }
    let name = keyring.name_of(&key);
    keyring.update(|list| list.remove(key))?;
    println!(
        "removed {name} (key {}); this host's server closes its links",
        key.short()
    );
    share(keyring)
}

fn show(keyring: &Keyring, json: bool) -> Result<(), Box<dyn Error>> {
    let own = keyring.fingerprint();
    let members = keyring.members()?;
    if json {
        let list: Vec<_> = members
            .iter()
            .map(|(key, member)| {
                serde_json::json!({
                    "key": key.to_string(),
                    "name": member.name,
                    "address": member.address,
                    "is_this_host": *key == own,
                })
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&list)?);
        return Ok(());
    }
    if let Err(why) = keyring.check_not_removed() {
        print_error!("selfpage: {why}");
    }
    println!("{:<17} {:<20} paging server", "key", "name");
    if !members.is_member(&own) && !members.is_removed(&own) {
        println!("{:<17} {:<20} this host", own.short(), host_name());
    }
    for (key, member) in members.iter() {
        let address = member.address.as_deref().unwrap_or("-");
        let mark = if *key == own { ", this host" } else { "" };
        println!("{:<17} {:<20} {address}{mark}", key.short(), member.name);
    }
    Ok(())
}
