/* The kernel refuses a clone: the caller has its error at once, the same one, and the next
 * clone that the kernel allows works. */
#include "hazard.h"
#include <linux/sched.h>
#include <stddef.h>

#define FAILURES 60

/* From now on the calling thread's clones with this exit signal fail with EAGAIN. */
static void refuse_clones(int exit_signal)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xff | CLONE_VM),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, exit_signal, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

static int never(void *arg)
{
    (void)arg;
    _exit(9);
}

static void child_holds(pid_t child, const char *kept)
{
    CHECK(child >= 0);
    if (child == 0)
        _exit(holds(kept, MB, 5) ? 0 : 1);
    int status;
    CHECK(waitpid(child, &status, __WALL) == child && status == 0);
}

int main(void)
{
    alarm(100);
    char *kept = map_private(MB);
    static char stack[65536] __attribute__((aligned(16)));
    fill(kept, MB, 5);
    refuse_clones(SIGCHLD);
    for (int i = 0; i < FAILURES; i++) {
        CHECK(fork() == -1 && errno == EAGAIN);
        CHECK(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == -1 && errno == EAGAIN);
        CHECK(clone(never, stack + sizeof stack, SIGCHLD, NULL) == -1 && errno == EAGAIN);
    }
    push_out();
    /* Another exit signal is let through. */
    child_holds(syscall(SYS_clone, 0, 0, 0, 0, 0), kept);
    return 0;
}
