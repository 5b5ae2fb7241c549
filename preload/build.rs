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
    // Before the constructors of every other library: their first `malloc` and their
    // `pthread_atfork` must find ours in place.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // The whole library is bound before the program's first instruction: no lazy
    // binding, which may allocate, inside a fork handler or a vfork child.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    // What it calls of its own exports are its own, whatever the program defines.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    // Stays loaded: the program's memory hangs on it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
