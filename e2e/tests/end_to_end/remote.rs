//! Pages in the memory of paging servers: contents, servers that are killed, and errors without a
//! server.

mod cluster;
mod last_resort;

use e2e::contract::{Contract, MIB, Size, Under, selfpage};
use e2e::processes::Process;
use e2e::verdict::{Doing, Verdict, ensure, failed, wait_for};
use e2e::{Launch, Outcome, Running, Sandbox, hazard};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to serve, or a program to page.
const PATIENCE: Duration = Duration::from_secs(30);
/// After this long the threads of a program page.
const UNDER_WAY: Duration = Duration::from_millis(700);
/// Connections that a server takes from one address.
const CONNECTIONS: u32 = 64;
/// How often a client is killed, and the pause in which the next one serves.
const KILLS: u32 = 5;
const BETWEEN_KILLS: Duration = Duration::from_millis(400);

pub fn trials(_: Size) -> Vec<Trial> {
    let mut trials = trials![
        "remote":
        pages_come_back_from_two_servers => || come_back(&[]),
        encrypted_pages_come_back_from_two_servers => || come_back(&["--encrypt"]),
        compressed_ram_in_frames_has_remote_memory_behind_it => || come_back(&["--ram=4M"]),
        two_hosts_page_after_an_invitation_and_not_after_a_removal => cluster::two_hosts,
        a_server_that_takes_no_connection_grants_no_permit_after_permit => no_connection,
        a_server_killed_while_threads_page_loses_no_page => server_killed,
        a_server_stopped_while_threads_page_loses_no_page => server_stopped,
        a_remote_client_killed_with_its_keeper_ends_the_program_with_an_error => client_killed,
        a_remote_client_killed_while_threads_page_loses_no_page => || client_killed_under_load(&[]),
        a_remote_client_that_encrypts_and_is_killed_loses_no_page =>
            || client_killed_under_load(&["--encrypt"]),
        a_remote_client_killed_with_its_keeper_under_load_ends_the_program =>
            keeper_killed_under_load,
        without_a_server_or_with_options_that_do_not_fit_nothing_starts => refused,
    ];
    trials.extend(last_resort::trials());
    trials
}

/// `selfpage serve` on a port of its own.
struct PagingServer {
    child: Child,
    address: String,
}

impl PagingServer {
    fn start(sandbox: &Sandbox, name: &str) -> Verdict<Self> {
        Self::lending(sandbox, name, "256M")
    }

    /// One that lends so much RAM.
    fn lending(sandbox: &Sandbox, name: &str, ram: &str) -> Verdict<Self> {
        let log = sandbox.join(name);
        let file = std::fs::File::create(&log).doing(|| format!("create {}", log.display()))?;
        let mut child = Command::new(selfpage()?)
            .args([
                "serve",
                "--ram",
                ram,
                "--listen",
                "127.0.0.1:0",
                "--insecure",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .doing(|| "start a paging server".into())?;
        let begun = Instant::now();
        loop {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            let address = said
                .split(" at ")
                .nth(1)
                .and_then(|rest| rest.split(',').next());
            if let Some(address) = address {
                let address = address.to_owned();
                return Ok(Self { child, address });
            }
            if begun.elapsed() > PATIENCE {
                let _ = child.kill();
                let _ = child.wait();
                return failed(format!("no paging server: {said:?}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for PagingServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(process: &Child, signal: Signal) {
    let _ = kill_process(Pid::from_child(process), signal);
}

fn contract(servers: &[&PagingServer]) -> Contract {
    let addresses: Vec<_> = servers
        .iter()
        .map(|server| server.address.as_str())
        .collect();
    Contract::new(8 * MIB)
        .with("--store=remote:128M")
        .with(&format!("--remote={}", addresses.join(",")))
        .with("--insecure")
}

/// Eight threads that write and check eight times their frames.
fn launch(sandbox: &Sandbox) -> Verdict<Launch<'_>> {
    let program = hazard::build(sandbox, "eight_threads_write_and_check", &[])?;
    let launch = Launch::new(sandbox, &program).variable("HAZARD_MB", "64");
    Ok(launch.limit(Duration::from_secs(120)))
}

fn come_back(options: &[&str]) -> Verdict {
    let sandbox = Sandbox::new("remote")?;
    let servers = [
        PagingServer::start(&sandbox, "one")?,
        PagingServer::start(&sandbox, "two")?,
    ];
    let launch = launch(&sandbox)?;
    let expected = launch.run(&Under::Nothing)?.succeeded()?.text();
    let contract = contract(&[&servers[0], &servers[1]]);
    let contract = options
        .iter()
        .fold(contract, |contract, option| contract.with(option));
    let outcome = launch.run(&Under::Contract(contract))?;
    let outcome = outcome.succeeded()?.within_contract()?;
    ensure(outcome.text() == expected, || {
        format!("{} instead of {expected}", outcome.text())
    })?;
    ensure(!outcome.stderr.contains("not compressed"), || {
        format!("it says {:?}", outcome.stderr)
    })
}

/// The broker chooses the server with most room, to which the client cannot connect.
fn no_connection() -> Verdict {
    let sandbox = Sandbox::new("remote_unconnected")?;
    let one = PagingServer::start(&sandbox, "one")?;
    let two = PagingServer::lending(&sandbox, "two", "1536M")?;
    let connect = |_| TcpStream::connect(&two.address).doing(|| "connect to a server".into());
    let connections: Vec<_> = (0..CONNECTIONS).map(connect).collect::<Verdict<_>>()?;
    let launch = launch(&sandbox)?;
    let outcome = launch.run(&Under::Contract(contract(&[&one, &two])))?;
    outcome.succeeded()?;
    drop(connections);
    let said = std::fs::read_to_string(sandbox.join("two")).doing(|| "read a log".into())?;
    ensure(!said.contains("permit"), || format!("one client: {said}"))
}

fn server_killed() -> Verdict {
    let sandbox = Sandbox::new("remote_killed")?;
    let one = PagingServer::start(&sandbox, "one")?;
    let two = PagingServer::start(&sandbox, "two")?;
    let launch = launch(&sandbox)?;
    let running = launch.spawn(&Under::Contract(contract(&[&one, &two])))?;
    std::thread::sleep(UNDER_WAY);
    drop(two);
    running.wait()?.succeeded().map(drop)
}

fn server_stopped() -> Verdict {
    let sandbox = Sandbox::new("remote_stopped")?;
    let one = PagingServer::start(&sandbox, "one")?;
    let two = PagingServer::start(&sandbox, "two")?;
    let launch = launch(&sandbox)?;
    let running = launch.spawn(&Under::Contract(contract(&[&one, &two])))?;
    std::thread::sleep(UNDER_WAY);
    signal(&two.child, Signal::STOP);
    let outcome = running.wait()?.succeeded();
    signal(&two.child, Signal::CONT);
    outcome.map(drop)
}

fn client_killed() -> Verdict {
    let sandbox = Sandbox::new("remote_client")?;
    let one = PagingServer::start(&sandbox, "one")?;
    let launch = Launch::new(&sandbox, "/bin/sleep").arg("60");
    let running = launch.spawn(&Under::Contract(contract(&[&one])))?;
    let clients = clients_of(&running)?;
    // After the program has started.
    std::thread::sleep(Duration::from_millis(500));
    kill_all(clients);
    ended_with_its_client(&running.wait()?)
}

/// The keeper of the remote client of a run, and the client, its child.
fn clients_of(running: &Running) -> Verdict<[Process; 2]> {
    running.keeper_and_client("remote-client")
}

/// Waits until the program has started, which it does when its client serves, and pages.
fn wait_until_it_pages(running: &Running) -> Verdict {
    let is_program = |process: &Process| {
        let command = process.command();
        command.contains("eight_threads") && !command.contains(" run ")
    };
    let text = || "the program does not start".to_owned();
    let has_begun = || running.processes().iter().any(is_program);
    wait_for(PATIENCE, text, || Ok(has_begun().then_some(())))?;
    std::thread::sleep(UNDER_WAY);
    Ok(())
}

/// The keeper first, which starts no other client then.
fn kill_all(clients: [Process; 2]) {
    clients.iter().for_each(Process::kill);
}

fn ended_with_its_client(outcome: &Outcome) -> Verdict {
    ensure(
        !outcome.status.success() && outcome.stderr.contains("the remote client has ended"),
        || {
            format!(
                "it ended with {:?} and said {:?}",
                outcome.status, outcome.stderr
            )
        },
    )
}

/// Requests are under way each time that the client ends, and the program checks every page.
fn client_killed_under_load(options: &[&str]) -> Verdict {
    let sandbox = Sandbox::new("remote_client_load")?;
    let one = PagingServer::start(&sandbox, "one")?;
    let two = PagingServer::start(&sandbox, "two")?;
    let contract = contract(&[&one, &two]);
    let contract = options.iter().fold(contract, |it, option| it.with(option));
    let mut running = launch(&sandbox)?.spawn(&Under::Contract(contract))?;
    let mut kills = 0;
    wait_until_it_pages(&running)?;
    while kills < KILLS && !running.ended() {
        let [_, client] = clients_of(&running)?;
        client.kill();
        kills += 1;
        std::thread::sleep(BETWEEN_KILLS);
    }
    println!("{kills} kills");
    ensure(kills > 0, || "the program ended before a kill".to_owned())?;
    running.wait()?.succeeded().map(drop)?;
    sandbox.check_clean()
}

/// Requests are under way when the client ends, faults wait for them, and the servers have its permits still.
fn keeper_killed_under_load() -> Verdict {
    let sandbox = Sandbox::new("remote_keeper_load")?;
    let one = PagingServer::start(&sandbox, "one")?;
    let two = PagingServer::start(&sandbox, "two")?;
    let under = Under::Contract(contract(&[&one, &two]));
    let launch = launch(&sandbox)?;
    let running = launch.spawn(&under)?;
    wait_until_it_pages(&running)?;
    kill_all(clients_of(&running)?);
    ended_with_its_client(&running.wait()?)?;
    sandbox.check_clean()?;
    // The next client has room beside what that one's permits hold until their lease ends.
    launch.run(&under)?.succeeded().map(drop)
}

fn refused() -> Verdict {
    let sandbox = Sandbox::new("remote_refused")?;
    let launch = Launch::new(&sandbox, "/bin/true");
    let base = || Contract::new(8 * MIB);
    // Nothing listens on the discard port.
    let nobody = base()
        .with("--store=remote:64M")
        .with("--remote=127.0.0.1:9");
    for (contract, words) in [
        (nobody.clone().with("--insecure"), "selfpage serve"),
        (nobody, "--insecure"),
        (base().with("--store=remote:64M"), "selfpage cluster invite"),
        (base().with("--store=remote:64M"), "--insecure"),
        (
            base().with("--store=remote:64M").with("--broker=here"),
            "--insecure",
        ),
        (
            base().with("--store=ram:64M").with("--remote=here"),
            "not remote",
        ),
        (
            base().with("--store=ram:64M").with("--encrypt"),
            "not remote",
        ),
    ] {
        let outcome = launch.run(&Under::Contract(contract))?.ended_with(125)?;
        outcome.mentions(words)?;
    }
    sandbox.check_clean()
}
