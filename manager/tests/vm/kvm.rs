//! A real virtual machine: its snapshot is restored through the hand-off, and its processor touches
//! all memory.

use crate::Test;
use crate::common::{Service, mib};
use crate::guest::{Kind, Memory, PAGE, word};
use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd};
use std::io::{BufRead, Write};
use std::os::unix::fs::FileExt;

pub const TESTS: &[Test] = &[
    (
        "a_virtual_machine_is_restored",
        a_virtual_machine_is_restored,
    ),
    ("a_virtual_machine_pages", a_virtual_machine_pages),
    (
        "a_virtual_machine_is_saved_while_it_runs",
        a_virtual_machine_is_saved_while_it_runs,
    ),
];

/// The guest's program, in its page 0. For each other page it adds the first word to a sum and counts the
/// second up; then it writes the sum to a port and halts.
const PROGRAM: [u8; 25] = [
    0x31, 0xc0, // xor eax, eax
    0xbb, 0x00, 0x10, 0x00, 0x00, // mov ebx, 0x1000
    0x03, 0x03, // next: add eax, [ebx]
    0xff, 0x43, 0x04, // inc dword [ebx + 4]
    0x81, 0xc3, 0x00, 0x10, 0x00, 0x00, // add ebx, 0x1000
    0x39, 0xcb, // cmp ebx, ecx
    0x72, 0xf1, // jb next
    0xe7, 0x10, // out 0x10, eax
    0xf4, // hlt
];

/// The VMM's main function: arguments are SOCKET BYTES.
pub fn main(kind: &str, args: &[String]) {
    let kind = if kind == "memfd" {
        Kind::Memfd
    } else {
        Kind::Private
    };
    let memory = Memory::hand_over(&kind, &args[0], args[1].parse().expect("bytes"));
    let kvm = Kvm::new().expect("/dev/kvm");
    let vm = kvm.create_vm().expect("a virtual machine");
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: memory.len as u64,
        userspace_addr: memory.start as u64,
    };
    // SAFETY: memory that lives as long as the process.
    unsafe { vm.set_user_memory_region(region) }.expect("memory of the guest");
    let mut vcpu = vm.create_vcpu(0).expect("a processor");
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a command");
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<usize>().expect("a number");
        let reply = match words[0] {
            "pass" => pass(&mut vcpu, memory.len as u64).to_string(),
            "balloon" => {
                memory.remove(number(1), number(2));
                "ballooned".to_owned()
            }
            other => format!("unknown command {other}"),
        };
        println!("{reply}");
        std::io::stdout().flush().expect("a reply");
    }
}

/// Runs the program from its beginning, in 32-bit protected mode with flat segments. Returns the sum.
fn pass(vcpu: &mut VcpuFd, len: u64) -> u32 {
    let mut special = vcpu.get_sregs().expect("special registers");
    let code = &mut special.cs;
    (code.base, code.limit, code.selector, code.type_) = (0, u32::MAX, 8, 11);
    (code.present, code.s, code.db, code.g) = (1, 1, 1, 1);
    let mut data = special.cs;
    (data.selector, data.type_) = (16, 3);
    (special.ds, special.es, special.ss) = (data, data, data);
    special.cr0 |= 1;
    vcpu.set_sregs(&special).expect("special registers");
    let mut registers = vcpu.get_regs().expect("registers");
    (registers.rip, registers.rcx, registers.rflags) = (0, len, 2);
    vcpu.set_regs(&registers).expect("registers");
    let mut sum = 0;
    loop {
        match vcpu.run().expect("the processor runs") {
            VcpuExit::IoOut(0x10, bytes) => {
                sum = u32::from_ne_bytes(bytes.try_into().expect("four bytes"));
            }
            VcpuExit::Hlt => return sum,
            exit => panic!("{exit:?}"),
        }
    }
}

fn is_skipped() -> bool {
    let missing = Kvm::new().err();
    if let Some(why) = &missing {
        eprintln!("skipped: /dev/kvm cannot be used: {why}");
    }
    missing.is_some()
}

fn start(pages: usize, frames: Option<usize>) -> Service {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = crate::common::make_snapshot(folder.path(), pages);
    let file = std::fs::File::options()
        .write(true)
        .open(&snapshot)
        .unwrap();
    file.write_all_at(&PROGRAM, 0).unwrap();
    Service::over(folder, &snapshot, |config| {
        config.contract = frames.map(|frames| (frames, "ram:128M".parse().unwrap()));
    })
}

/// The sum of the first words, without those of some pages.
fn sum(pages: usize, zeros: std::ops::Range<usize>) -> String {
    let rest = (1..pages).filter(|page| !zeros.contains(page));
    let sum = rest.fold(0u32, |sum, page| sum.wrapping_add(word(page, 0, 0) as u32));
    sum.to_string()
}

fn a_virtual_machine_is_restored() {
    if is_skipped() {
        return;
    }
    let pages = mib(32);
    let service = start(pages, None);
    for kind in ["kvm-private", "kvm-memfd"] {
        let mut guest = service.guest(kind, pages * PAGE);
        assert_eq!(guest.run("pass"), sum(pages, 0..0), "{kind}");
        guest.run("balloon 1000 500");
        assert_eq!(guest.run("pass"), sum(pages, 1000..1500), "{kind}");
    }
}

fn a_virtual_machine_pages() {
    if is_skipped() {
        return;
    }
    let (pages, frames) = (mib(32), mib(4));
    let service = start(pages, Some(frames));
    let mut guest = service.guest("kvm-memfd", pages * PAGE);
    for _ in 0..3 {
        assert_eq!(guest.run("pass"), sum(pages, 0..0));
    }
    guest.run("balloon 1000 500");
    assert_eq!(guest.run("pass"), sum(pages, 1000..1500));
    let counters = service.counters(1);
    assert!(counters.evicted_pages.get() as usize > 3 * (pages - frames));
    assert!(counters.resident_pages.get() as usize <= frames);
}

fn a_virtual_machine_is_saved_while_it_runs() {
    if is_skipped() {
        return;
    }
    let pages = mib(32);
    let service = start(pages, None);
    let mut guest = service.guest("kvm-private", pages * PAGE);
    guest.run("pass");
    guest.run("pass");
    let to = service.folder.path().join("differential");
    // Two passes are in the save, whatever the third has done meanwhile.
    crate::saves::save_complete(&service, &to, || guest.begin("pass"));
    assert_eq!(guest.finish(), sum(pages, 0..0));
    let whole = crate::saves::merge(&service.folder.path().join("snapshot.mem"), &to);
    for page in 1..pages {
        let at = page * PAGE + 4;
        let seen = u32::from_ne_bytes(whole[at..at + 4].try_into().unwrap());
        let counted = seen.wrapping_sub((word(page, 0, 0) >> 32) as u32);
        assert_eq!(counted, 2, "page {page}");
    }
}
