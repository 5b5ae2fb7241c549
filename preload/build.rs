//! Compiles the functions Rust cannot define, and has the loader run this library first.

fn main() {
    println!("cargo:rerun-if-changed=src/variadic.c");
    println!("cargo:rerun-if-changed=src/local.c");
    println!("cargo:rerun-if-changed=build.rs");
    cc::Build::new()
        .file("src/variadic.c")
        .flag("-fno-builtin")
        .compile("selfpage_variadic");
    // Loops stay loops: the functions they would be replaced by are these.
    cc::Build::new()
        .file("src/local.c")
        .flags([
            "-O2",
            "-ffreestanding",
            "-fno-tree-loop-distribute-patterns",
        ])
        .compile("selfpage_local");
    link_unwinder_statically();
    // Before the constructors of every other library: their first `malloc` and their
    // `pthread_atfork` must find ours in place.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // The whole library is bound before the program's first instruction: no lazy
    // binding, which may allocate, inside a fork handler or a vfork child.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    // What it calls of its own exports are its own, whatever the program defines.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    // What other crates export is for linked programs: the signals of a program under `run` are the C
    // library's, since its faults are no upcalls.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    // Stays loaded: the program's memory hangs on it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

/// Rust's library needs the unwinder, which is a shared library that few programs of C load: to
/// load it takes a process some 20 system calls and page faults. A script for the linker in its
/// place takes the functions from the compiler's archives. The program's own unwinder is another.
fn link_unwinder_statically() {
    let archive = |name: &str| {
        let compiler = cc::Build::new().get_compiler();
        let asked = compiler
            .to_command()
            .arg(format!("-print-file-name={name}"))
            .output();
        let path = String::from_utf8(asked.ok()?.stdout).ok()?;
        let path = std::path::PathBuf::from(path.trim());
        path.is_absolute().then_some(path)
    };
    let (Some(unwinder), Some(common), Some(dir)) = (
        archive("libgcc_eh.a"),
        archive("libgcc.a"),
        std::env::var_os("OUT_DIR"),
    ) else {
        // Another compiler's: the shared library serves, too.
        return;
    };
    let script = format!("GROUP({} {})\n", unwinder.display(), common.display());
    let dir = std::path::Path::new(&dir).join("unwinder");
    let written = std::fs::create_dir_all(&dir)
        .and_then(|()| std::fs::write(dir.join("libgcc_s.so"), script));
    if written.is_ok() {
        println!("cargo:rustc-cdylib-link-arg=-L{}", dir.display());
    }
}
