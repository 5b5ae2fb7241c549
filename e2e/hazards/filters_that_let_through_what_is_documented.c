/* Processes with a seccomp filter that lets through one operation on memory, and what README says that the library
 * calls for it, make that operation; all else kills them. */
#include "hazard.h"
#include <stddef.h>

enum { MOST = 8 };

static char *memory, *shared;
static int own;

static void unmaps(void) { CHECK(munmap(memory, MB) == 0); }

static void replaces(void)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    CHECK(mmap(memory, MB, PROT_READ | PROT_WRITE, flags, -1, 0) == memory && all_zero(memory, MB));
}

static void moves_its_break(void)
{
    char *at = sbrk(MB);
    CHECK(at != (void *)-1);
    memset(at, 1, MB);
}

static void locks(void) { CHECK(mlock(memory, 2 * PAGE) == 0 && munlock(memory, 2 * PAGE) == 0); }

static void advises_itself(void)
{
    struct iovec part = {memory, MB};
    ssize_t done = syscall(SYS_process_madvise, own, &part, 1, MADV_DONTNEED, 0);
    CHECK(done == -1 ? errno == EINVAL : done == (ssize_t)MB && all_zero(memory, MB));
}

static void shares(void)
{
    char *more = mmap(NULL, MB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(more != MAP_FAILED);
    memset(more, 1, MB);
    CHECK(madvise(shared, MB, MADV_REMOVE) == 0 && all_zero(shared, MB));
    CHECK(mremap(shared, MB, 2 * MB, MREMAP_MAYMOVE) != MAP_FAILED);
}

static const struct { void (*make)(void); int calls[MOST]; } OPERATIONS[] = {
    {unmaps, {SYS_munmap, SYS_mprotect, SYS_mmap}},
    {replaces, {SYS_mmap, SYS_mprotect}},
    {moves_its_break, {SYS_brk, SYS_mmap, SYS_mprotect}},
    {locks, {SYS_mlock, SYS_mlock2, SYS_munlock, SYS_prlimit64, SYS_capget}},
    {advises_itself, {SYS_process_madvise, SYS_ioctl}},
    {shares, {SYS_mmap, SYS_mremap, SYS_madvise}},
};

/* What the library calls for any operation, and a program that ends. */
static const int ALWAYS[] = {
    SYS_rt_sigprocmask, SYS_gettid, SYS_getpid, SYS_madvise, SYS_mincore, SYS_futex, SYS_clock_gettime,
    SYS_write, SYS_exit_group,
};

static void let_through(const int *calls)
{
    struct sock_filter filter[4 * (MOST + sizeof ALWAYS / sizeof *ALWAYS)];
    unsigned short len = 0;
    filter[len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t n = 0; n < MOST + sizeof ALWAYS / sizeof *ALWAYS; n++) {
        int call = n < MOST ? calls[n] : ALWAYS[n - MOST];
        if (n < MOST && call == 0)
            continue;
        filter[len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1);
        filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = {len, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
}

int main(void)
{
    for (size_t n = 0; n < sizeof OPERATIONS / sizeof *OPERATIONS; n++) {
        pid_t child = checked_fork();
        if (child == 0) {
            memory = map_private(8 * MB);
            fill(memory, 8 * MB, 1);
            shared = mmap(NULL, MB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
            CHECK(shared != MAP_FAILED);
            memset(shared, 1, MB);
            own = syscall(SYS_pidfd_open, getpid(), 0);
            let_through(OPERATIONS[n].calls);
            OPERATIONS[n].make();
            _exit(0);
        }
        reap(child);
    }
    puts("all operations are made");
    return 0;
}
