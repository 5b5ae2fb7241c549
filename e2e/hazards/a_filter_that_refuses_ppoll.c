/* A program's filter answers EPERM to ppoll, which the program does not call, and binds the pager of the fork's
 * child: that ends with the child all the same, and the tree with it. */
#include "hazard.h"
#include <stddef.h>

int main(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ppoll, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    char *p = map_private(MB);
    fill(p, MB, 7);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
    pid_t child = checked_fork();
    if (child == 0)
        _exit(holds(p, MB, 7) ? 0 : 1);
    reap(child);
    return 0;
}
